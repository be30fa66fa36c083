"""The example that shows and records what cameras see."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shutil
import signal
import time
import urllib.request

import pytest

import gpuring
from tests.docs.examples import EXAMPLES, needs_video, printed
from tests.helpers.processes import poll


def _check_video(start, first, lines, seconds, where):
    """The recorder compares what was detected with a second decode.  This test checks that its file
    can be played."""
    av = pytest.importorskip("av")
    if start.on_host:
        assert first == "no GPU here, so this runs on host memory, and PyAV decodes"
    else:
        assert first.startswith(("NVDEC decodes", "no NVDEC here"))
    frames = 25 * seconds
    expected = rf"recorder +{3 * frames} frames, each right; age p50 \d+, p99 \d+ ms"
    assert re.fullmatch(expected, lines[-2])
    with av.open(str(where / "seen.mp4")) as file:
        sizes = [(frame.width, frame.height) for frame in file.decode(video=0)]
    assert sizes == [(1280, 3 * 720)] * frames


@pytest.mark.slow
def test_a_camera_of_the_video_pipeline_decodes_ahead_before_the_cameras_begin(name, monkeypatch):
    """Otherwise the camera begins late, and on a slow machine no picture shows it."""
    needs_video()
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(gpuring, "exit_on_sigterm", lambda: None)  # the example calls it
    pipeline = importlib.import_module("video_pipeline")
    steps = []

    class Ready:
        def wait(self, _seconds):
            steps.append("all are ready")

    def decoder(_stream):
        while True:
            steps.append("decodes")
            yield torch.zeros((3 * pipeline.H // 2, pipeline.W), dtype=torch.uint8)

    spec = {"slots": 2, "fields": pipeline.NV12, "meta": pipeline.META, "device": "host"}
    with gpuring.create(name, **spec) as ring:
        pipeline.camera(2, ring, decoder, 1, Ready())
    assert steps == ["decodes"] * (2 * pipeline.AHEAD + 1) + ["all are ready"]


def _page(process):
    """(first line, pids of the cameras, address of the page) of a pipeline that has started."""
    first, cameras, page = (process.stdout.readline().strip() for _ in range(3))
    assert cameras.startswith("cameras "), cameras
    assert page.startswith("page "), page
    return first, [int(pid) for pid in cameras.split()[1:]], page.split()[1]


def _figures(address):
    with urllib.request.urlopen(f"{address}/figures", timeout=60) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_cameras_that_stall_or_die_hold_up_nobody(start, tmp_path):
    """The page says so, the file shows it, and all frames that came are there."""
    needs_video()
    av = pytest.importorskip("av")
    process = start("video_pipeline.py", args=["6"])
    _, cameras, address = _page(process)
    with gpuring.attach("seen0") as ring:

        def more(frames):
            """Waits until so many more frames of camera 0 were detected: more than all rings
            together hold."""
            until = ring.stats().cursor + frames
            poll(lambda: ring.stats().cursor >= until, 90)

        more(10)
        os.kill(cameras[1], signal.SIGSTOP)
        more(40)
        poll(lambda: _figures(address)[1] == "no signal", 60)
        os.kill(cameras[1], signal.SIGCONT)
        os.kill(cameras[2], signal.SIGKILL)
        more(20)
        poll(lambda: _figures(address)[2] == "no signal: it has ended", 60)
    *_, recorder, signals = printed(process)
    died_at = int(re.match(r"recorder +(\d+) frames, each right; age", recorder)[1]) - 2 * 150
    assert 0 < died_at < 150
    no_signal, late = re.search(r"no signal in \[(.*)\] pictures.*; (\d+) frames", signals).groups()
    no_signal = [int(each) for each in no_signal.split(", ")]
    assert no_signal[1] >= 10
    assert no_signal[2] >= 150 - died_at
    assert int(late) > 0
    with av.open(str(tmp_path / "seen.mp4")) as file:
        pictures = [frame.to_ndarray(format="yuv420p") for frame in file.decode(video=0)]
    assert len(pictures) == 150
    for k, absent in enumerate(no_signal):
        corners = [picture[720 * k : 720 * k + 100, :100] for picture in pictures]
        # Nearly all pixels have it, because the codec leaves traces of the picture before.
        gray = [(abs(each - 32.0) < 4).mean() > 0.9 for each in corners]
        assert sum(gray) == absent


@pytest.mark.slow
def test_video_page(start, tmp_path):
    """A reader of the page gets JPEGs as long as there are frames.  A reader that leaves is not
    counted any more.  All frames are recorded meanwhile."""
    needs_video()
    image = pytest.importorskip("PIL.Image")
    process = start("video_pipeline.py", args=["4"])
    first, _, address = _page(process)
    with gpuring.attach("seen1") as ring:
        poll(lambda: _figures(address)[1] != "no signal", 60)  # the page's own reader is there
        peers = ring.stats().peers
        for _ in range(3):
            with urllib.request.urlopen(f"{address}/1", timeout=60) as stream:
                stream.read(1000)
        assert [peer.number for peer in ring.stats().peers] == [peer.number for peer in peers]
    with urllib.request.urlopen(f"{address}/1", timeout=60) as stream:
        received = stream.read()  # to its end: the page's too
    pictures = [each.split(b"\r\n\r\n", 1)[1] for each in received.split(b"--next\r\n")[1:-1]]
    assert len(pictures) > 5
    for picture in pictures:
        with image.open(io.BytesIO(picture)) as opened:
            opened.load()
            assert opened.size == (640, 360)
    assert len(set(pictures)) > 5, "the picture does not move"
    _check_video(start, first, printed(process), 4, tmp_path)


@pytest.fixture
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    with sync_api.sync_playwright() as playwright:
        try:  # without a browser of the system's, the one of `playwright install chromium`
            opened = playwright.chromium.launch(
                executable_path=next(found, None), args=["--no-sandbox"]
            )
        except sync_api.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        yield opened
        opened.close()


@pytest.mark.slow
def test_video_page_in_a_browser(start, tmp_path, browser):
    """All three streams are shown, and move."""
    needs_video()
    process = start("video_pipeline.py", args=["6"])
    first, _, address = _page(process)
    page = browser.new_page()
    page.goto(address, wait_until="domcontentloaded")  # the page loads as long as there are frames
    page.wait_for_function(
        "() => document.images.length == 3"
        " && [...document.images].every(image => image.naturalWidth == 640)"
    )
    seen = [image.screenshot() for image in page.query_selector_all("img")]
    patience = time.monotonic() + 30
    for image, before in zip(page.query_selector_all("img"), seen, strict=True):
        while image.screenshot() == before:
            assert time.monotonic() < patience, "a picture does not move"
    page.close()
    _check_video(start, first, printed(process), 6, tmp_path)
