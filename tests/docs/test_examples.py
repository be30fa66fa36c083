"""The examples run as they are, and the guide shows them as they are."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

import gpuring
from tests import ROOT
from tests.helpers.commands import python
from tests.helpers.promise import promise
from tests.helpers.support import poll

EXAMPLES = ROOT / "examples"
NUMBERS = ("numbers", "squares")
VIDEO = tuple(f"{each}{k}" for each in ("cam", "seen") for k in range(3))
RINGS = {
    "two_scripts": NUMBERS,
    "one_script.py": NUMBERS,
    "sensor_latest.py": ("lidar",),
    "weights_handover.py": ("weights",),
    "video_pipeline.py": VIDEO,
    "inference_frontends.py": ("classify",),
    "upscale_frontends.py": ("upscale",),
    "two_hosts/run.py": ("cam0", "cam1", "seen0", "seen1"),
    "supervised/run.py": ("cam0", "cam1", "cam2", "seen"),
}
"""The names of rings that an example takes.  Two tests at a time cannot have the same ones."""
FRONT_ENDS = ("torch", "uvicorn", "starlette", "PIL")
"""What those with a page in HTTP import."""
ON_HOST = "no GPU here, so this runs on host memory"


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def start(request, programs, monkeypatch):
    """Starts an example.

    The test has the names of its examples' rings for itself, also among workers of pytest-xdist.
    It is skipped where another program has them.
    With `alone=False` it does not, and the example must not make a ring.
    """
    if request.param == "host":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hides the GPU where there is one
    names, locks = set(), contextlib.ExitStack()

    def start(*path, args=(), alone=True, **options):
        example = EXAMPLES.joinpath(*path)
        taken = set(RINGS.get(path[0], ())) if alone else set()
        if not taken <= names:
            _lock(locks, min(taken))
            if there := [path for name in taken for path in _files(name)]:
                pytest.skip(f"another program has rings of the example's names: {there}")
            names.update(taken)
        process = programs.start(example, *args, **options)
        if alone:
            names.add(f"example-{process.pid}")
        return process

    start.on_host = request.param == "host"
    with locks:
        yield start
        programs.end()
        left = [path for name in names for path in _files(name)]
        for path in left:
            path.unlink()
        assert not left


def _needs(*modules):
    for module in modules:
        pytest.importorskip(module, reason="gpuring[examples,bridge] is not installed")


def _lock(until, name):
    """Waits until no other test has the name."""
    file = until.enter_context(
        (Path(tempfile.gettempdir()) / f"gpuring-test-{os.getuid()}-{name}").open("w")
    )
    fcntl.flock(file, fcntl.LOCK_EX)


def _files(name):
    """Returns the files in shared memory of a ring or service of this name."""
    found = Path("/dev/shm").glob(f"gpuring.{name}*")
    return [path for path in found if re.match(rf"gpuring\.{name}(\W|$)", path.name)]


def _lines(process, patience_s=200):
    out, _ = process.communicate(timeout=patience_s)
    assert process.returncode == 0, out
    return out.splitlines()


def _check(lines, on_host):
    if on_host:
        assert lines.pop(0) == ON_HOST
    for n, line in enumerate(lines):
        sent, squares = line.split(" came back as ")
        assert int(sent) == n
        assert [float(x) for x in squares.strip("[]").split()] == [n * n] * 8
    assert len(lines) == 4


@pytest.mark.parametrize("first", ["send.py", "change.py"])
def test_two_scripts(start, first):
    """In whichever order they are started."""
    second = {"send.py": "change.py", "change.py": "send.py"}[first]
    processes = {name: start("two_scripts", name) for name in (first, second)}
    _check(_lines(processes["send.py"]), start.on_host)
    assert _lines(processes["change.py"]) == []


def test_one_script(start):
    _check(_lines(start("one_script.py")), start.on_host)


@pytest.mark.slow
def test_sensor_latest(start, tmp_path):
    """It checks its log and its plans itself; here, that its figures add up."""
    h5py = pytest.importorskip("h5py", reason="gpuring[examples] is not installed")
    _needs("torch")
    lines = _lines(start("sensor_latest.py", args=["1"]))
    if start.on_host:
        assert lines.pop(0) == f"{ON_HOST} with torch on the CPU"
    rate = re.match(r"lidar +(\d+) scans/s of 2048 points, late by p50 ", lines.pop(0))[1]
    text = "\n".join(lines)  # planner and logger are two processes: in either order
    plans, lost = re.search(
        r"planner +(\d+) plans, (\d+) scans lost, age .* ms$", text, re.M
    ).groups()
    assert int(plans) + int(lost) == 1000
    most = 2 + 100 * 1000 / int(rate)  # a slow machine may take longer than a second
    assert 0 < int(plans) <= most, "a planner at 100 Hz passes over most scans"
    assert re.search(r"logger +1000 scans in scans.h5, age", text)
    assert "every one, in order, bit for bit as the lidar measured it" in text
    with h5py.File(tmp_path / "scans.h5") as log:
        assert len(log["points"]) == len(log["meta"]) == 1000


@promise(
    "services.md",
    "[The token stream](examples/token_stream.md) has prompts in one service, and images in "
    "another one.",
)
@pytest.mark.slow
def test_token_stream(start):
    """Each front end checks its tokens itself; here, that none of the living has missed any."""
    text = "\n".join(_lines(start("token_stream.py", args=["30"])))
    told = r"front end (\d)  30 prompts, .*, (\d+) in all, each right; \d+ streams asked for again"
    assert sorted(re.findall(told, text)) == [("0", "3000"), ("1", "300"), ("3", "3000")]
    assert re.search(r"engine +took over: [1-9]\d* streams to their end", text)


@pytest.mark.slow
def test_weights_handover(start):
    """It compares checksums itself; here, that all end with the same weights, the late one too."""
    pytest.importorskip("torch", reason="gpuring[examples] is not installed")
    lines = _lines(start("weights_handover.py", args=["150"]))
    if start.on_host:
        assert lines.pop(0) == "no GPU here, so this runs on host memory with torch on the CPU"
    text = "\n".join(lines)
    (loss,) = re.findall(r"trainer +made 30 versions, loss ([\d.]+)", text)
    assert float(loss) < 0.5, "the model has learned nothing"
    samplers = re.findall(r"sampler (\d) +used (\d+) versions, (\d+) … 30, loss (\d\.\d{4})", text)
    assert sorted(number for number, *_ in samplers) == ["0", "1", "2"]
    assert {loss for *_, loss in samplers} == {loss}
    used, first = next((int(used), int(first)) for n, used, first, _ in samplers if n == "2")
    assert first > 1, "the third sampler came late"
    assert used <= 31 - first


def _check_video(start, first, lines, seconds, where):
    """The recorder held what was detected to a second decode; here, that its file can be played."""
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


def _needs_video():
    _needs("av", *FRONT_ENDS)


@pytest.mark.slow
def test_video_pipeline(start, tmp_path):
    _needs_video()
    process = start("video_pipeline.py", args=["2"])
    first, _, _ = _page(process)
    _check_video(start, first, _lines(process), 2, tmp_path)


@pytest.mark.slow
def test_a_camera_of_the_video_pipeline_decodes_ahead_before_the_cameras_begin(name, monkeypatch):
    """Otherwise it begins late, and on a slow machine no picture has a signal of it."""
    _needs_video()
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(gpuring, "exit_on_sigterm", lambda: None)  # it calls that
    pipeline = importlib.import_module("video_pipeline")
    monkeypatch.setattr(pipeline, "end_with_parent", lambda: None)
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
    """And the page says so, the file shows it, and what came is all there."""
    _needs_video()
    av = pytest.importorskip("av")
    process = start("video_pipeline.py", args=["6"])
    _, cameras, address = _page(process)
    with gpuring.attach("seen0") as ring:

        def more(frames):
            """So many more of camera 0 have been detected: more than all rings together hold."""
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
    *_, recorder, signals = _lines(process)
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
        # Of nearly all pixels: the codec leaves traces of the picture before.
        gray = [(abs(each - 32.0) < 4).mean() > 0.9 for each in corners]
        assert sum(gray) == absent


PLAIN = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
"""Before a command of root: it makes no namespaces."""


def _session(pid):
    """What runs by way of one process that a test has started, without zombies: {pid: command}."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = path.read_text().rsplit(")")[1].split()[:4]
            if int(session) == pid and state != "Z":
                found[int(path.parent.name)] = (path.parent / "cmdline").read_text()
    return found


def _killed_with_its_children(process, *rings):
    process.kill()
    process.wait()
    with contextlib.suppress(AssertionError):
        poll(lambda: not _session(process.pid), 120)  # some are still importing torch
    assert _session(process.pid) == {}
    for ring in rings:
        for path in _files(ring):
            path.unlink()


CHILDREN = {
    "sensor_latest.py": 2,
    "weights_handover.py": 3,
    "video_pipeline.py": 5,
    "inference_frontends.py": 8,
    "upscale_frontends.py": 4,
    "service.py": 5,
    "token_stream.py": 5,
    "one_script.py": 1,
    "two_hosts/run.py": 7,
    "supervised/run.py": 11,
}
"""How many processes each example starts."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CHILDREN)
def test_children_end_when_their_parent_is_killed(start, name):
    _needs("av", "h5py", "zmq", *FRONT_ENDS)
    process = start(name)
    poll(lambda: len(_session(process.pid)) > CHILDREN[name], 60)
    _killed_with_its_children(process, *RINGS.get(name, ()), f"example-{process.pid}")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", ["two_scripts/send.py", *CHILDREN])
def test_an_example_that_gets_sigterm_ends_with_its_children_and_leaves_nothing(start, name):
    """Its files are looked for where the test ends."""
    _needs("av", "h5py", "zmq", *FRONT_ENDS)
    process = start(*name.split("/") if name not in CHILDREN else [name])
    rings = RINGS.get(name.removesuffix("/send.py"), (f"example-{process.pid}",))
    if name == "two_hosts/run.py":
        rings = ()  # of the hosts themselves
    poll(lambda: all(map(_files, rings)), 60)
    poll(lambda: len(_session(process.pid)) > CHILDREN.get(name, 0), 60)
    process.terminate()
    assert process.wait(60) == 143
    poll(lambda: _session(process.pid) == {}, 60)


LATE = f"""#!/bin/sh
case "$*" in *detector.py*) while kill -0 $PPID; do sleep 0.02; done 2>/dev/null ;; esac
exec {shutil.which("setpriv")} "$@"
"""
"""Ties the detector to its parent when this is dead."""


@pytest.mark.slow
def test_who_is_tied_too_late_ends_with_two_hosts(start, tmp_path, monkeypatch):
    _needs("zmq")
    if not start.on_host:
        pytest.skip("it runs in host memory")
    (tmp_path / "setpriv").write_text(LATE)
    (tmp_path / "setpriv").chmod(0o755)
    before = PLAIN if os.geteuid() == 0 else []
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    process = start("two_hosts/run.py", before=before)
    poll(lambda: any("detector.py" in each for each in _session(process.pid).values()), 60)
    _killed_with_its_children(process, *RINGS["two_hosts/run.py"])


ANY_NAME = ("supervised/detector.py", "supervised/recorder.py")
"""Those for which any word is a right argument."""


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "name", sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py"))
)
def test_help_and_wrong_arguments(start, name):
    if name in ("inference_load.py", "upscale_load.py", "video_page.py"):  # parts of other ones
        _needs_video()
    else:
        assert _lines(start(name, args=["--help"], alone=False))[0].startswith("usage: ")
    for wrong in ("--nonsense", "x")[: 1 if name in ANY_NAME else 2]:
        process = start(name, args=[wrong], alone=False, stderr=subprocess.PIPE)
        _, said = process.communicate(timeout=60)
        assert process.returncode != 0
        assert said.startswith("usage: ")
        assert "Traceback" not in said


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "name",
    [
        *("inference_frontends", "sensor_latest", "upscale_frontends"),
        *("video_page", "video_pipeline", "weights_handover"),
    ],
)
def test_without_its_packages_an_example_says_what_to_install(name, tmp_path):
    """Whether they are installed here or not.  --help needs none of them."""
    path = str(EXAMPLES / f"{name}.py")
    for arguments in ([], ["--help"]):
        program = (
            "import runpy, sys; sys.modules.update(dict.fromkeys(('h5py', 'torch', 'uvicorn')));"
            f"sys.argv = {[path, *arguments]}; runpy.run_path({path!r}, run_name='__main__')"
        )
        done = python(program, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
        if arguments and name != "video_page":  # which is a part of another one
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith("usage: ")
        else:
            assert (done.returncode, done.stdout) == (1, "")
            (line,) = done.stderr.splitlines()
            assert line.endswith(": pip install 'gpuring[examples]'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_video_page(start, tmp_path):
    """A reader of the page gets JPEGs as long as there are frames; one who leaves leaves nobody."""
    _needs_video()
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
    _check_video(start, first, _lines(process), 4, tmp_path)


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
    _needs_video()
    process = start("video_pipeline.py", args=["8"])
    first, _, address = _page(process)
    page = browser.new_page()
    page.goto(address, wait_until="domcontentloaded")  # it loads as long as there are frames
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
    _check_video(start, first, _lines(process), 8, tmp_path)


def test_the_guide_shows_the_examples_as_they_are():
    """Its first blocks leave out what is for machines without a GPU, and the command line."""
    guide = (ROOT / "docs" / "guide.md").read_text()
    for name in ("two_scripts/send.py", "two_scripts/change.py", "one_script.py"):
        block = re.search(rf"```python\n# examples/{name}\n(.*?)```", guide, re.DOTALL)
        assert block, f"the guide does not show {name}"
        lines = (line.strip() for line in (EXAMPLES / name).read_text().splitlines())
        for line in filter(None, map(str.strip, block[1].splitlines())):
            assert line in lines, f"{name} has no line {line!r}, or in another place"


@promise(
    "services.md",
    "The [inference front ends](examples/inference_frontends.md) have HTTP in front of the "
    "clients, and torch in the engines.",
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("inference_frontends.py", r"^ring +\d+ .*^queues +\d+ .*^ratio "),
        ("upscale_frontends.py", r"^load +[1-9]\d* requests/s, p50 "),
    ],
)
def test_front_ends_and_engines_that_are_killed(start, name, told):
    """It checks every answer itself; here, that there were some, and that two were killed."""
    _needs(*FRONT_ENDS)
    lines = _lines(start(name, args=["2"]))
    if start.on_host:
        assert lines.pop(0) == "no GPU here, so this runs on host memory with torch on the CPU"
        if name == "upscale_frontends.py":
            assert lines.pop(0) == "codec     Pillow, photos of 320 × 180"
    text = "\n".join(lines)
    assert re.search(told, text, re.M | re.S)
    worker, engine = re.search(r"^killed +worker (\d+) and engine (\d+)[,;] ", text, re.M).groups()
    assert worker != engine
    meanwhile = int(re.search(r"(\d+) requests meanwhile", text)[1])
    answers = int(re.search(r"^in all +(\d+) answers, 0 of them wrong, 0 refusals", text, re.M)[1])
    assert answers > meanwhile > 0


@pytest.mark.slow
def test_two_hosts(start):
    """The detector checks each image.  The second run may make no namespaces."""
    _needs("zmq")
    if not start.on_host:
        pytest.skip("it runs in host memory")
    for before, names in (([], ("cam", "seen")), (PLAIN if os.geteuid() == 0 else [], ("seen",))):
        head, ready, *told = _lines(start("two_hosts/run.py", args=["40"], before=before))
        assert head.startswith(("two hosts: ", "one host with two names for each ring ("))
        assert ready == "detector ready"
        right = re.compile(r"(\w+)\d  40 images, each right and in order, ")
        assert [right.match(line)[1] for line in told] in [[name] * 2 for name in names]


@pytest.mark.slow
def test_supervised_programs_lose_no_picture(start):
    """They are stopped and killed meanwhile.  It exits with 1 if a picture is missing."""
    if not start.on_host:
        pytest.skip("it runs in host memory")
    lines = _lines(start("supervised/run.py", args=["10", "--port", "0"]))
    for name in ("cam0", "cam1", "cam2"):
        (line,) = (line for line in lines if line.startswith(f"{name}  "))
        sent, kept = re.match(r"\w+  (\d+) pictures sent, (\d+) of them recorded", line).groups()
        assert int(sent) >= int(kept) > 0


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("run.py", ["0"], "argument images: must be at least 1, not 0"),
        ("detector.py", ["0", "cam"], "argument images: must be at least 1, not 0"),
        ("camera.py", ["many", "cam"], "argument images: invalid count value: 'many'"),
        ("camera.py", ["1", "../cam"], "camera.py: '../cam' cannot name a ring"),
        ("detector.py", ["1", "../cam"], "detector.py: '../cam' cannot name a ring"),
    ],
)
def test_two_hosts_refuses_arguments_with_a_reason(name, args, told):
    done = python(EXAMPLES / "two_hosts" / name, *args, cwd=ROOT)
    assert done.returncode in (1, 2)
    assert told in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


PAGES = {
    "inference_load.py": "examples/inference_frontends.md",
    "one_script.py": "guide.md",
    "two_scripts/change.py": "guide.md",
    "two_scripts/send.py": "guide.md",
    "service.py": "services.md",
    **{f"two_hosts/{name}.py": "examples/two_hosts.md" for name in ("camera", "detector", "run")},
    **{
        f"supervised/{name}.py": "examples/supervised.md"
        for name in ("camera", "detector", "recorder", "page", "run")
    },
    "upscale_load.py": "examples/upscale_frontends.md",
    "video_page.py": "examples/video_pipeline.md",
}
"""Of those that have none of their own in docs/examples."""


@pytest.mark.parametrize(
    "name", sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py"))
)
def test_every_example_is_short_and_has_a_page(name):
    path = EXAMPLES / name
    if path.stem != "inference_load":  # no example, but what measures one
        assert len(path.read_text().splitlines()) < 210
    page = ROOT / "docs" / PAGES.get(name, f"examples/{path.stem}.md")
    assert f"examples/{name}" in page.read_text()
