"""The pipelines and programs of docs/gstreamer.md."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

import gpuring
from gpuring import config
from tests import ROOT
from tests.docs.blocks import pasted
from tests.helpers import commands
from tests.helpers.processes import PATIENCE_S, poll

PAGE = (ROOT / "docs" / "gstreamer.md").read_text()
PROGRAMS = pasted("docs/gstreamer.md")
PIPELINES = re.findall(r"^gst-launch-1\.0 (.*)$", PAGE.replace("\\\n", ""), re.M)
CAMERA = "videotestsrc is-live=true ! gpuringsink ring=cam0"


@pytest.fixture
def ours(name, tmp_path):
    """The rings have names of this test, and the files lie in its folder."""

    def ours(text):
        for ring in ("cam0", "decoded", "edited"):
            text = re.sub(rf'(ring=|"){ring}\b', rf"\g<1>{name}-{ring}", text)
        return text.replace("location=", f"location={tmp_path}/")

    return ours


@pytest.fixture
def started(launch, ours):
    """Starts the pipeline that begins so."""

    def started(begins):
        (line,) = (each for each in PIPELINES if each.startswith(begins))
        return launch(ours(line))

    return started


def test_a_program_of_the_page_sees_the_frames_of_a_pipeline(started, ours):
    camera = started(CAMERA)
    watch = commands.python(ours(PROGRAMS["watch.py"]), check=True).stdout
    assert "video/x-raw, format=(string)" in watch
    assert "(240, 320" in watch
    camera.interrupt()


def encodes(stats):
    """Whether about twenty frames have come since the encoder joined."""
    return any(
        camera.frames > reader.start + 20
        for reader in stats.subscriptions
        for camera in stats.producers
    )


def test_the_pipelines_of_the_page_encode_and_decode(name, launch, started, ours, tmp_path):
    encoder = started("-e gpuringsrc ring=cam0 !")
    camera = started(CAMERA)
    with gpuring.attach(f"{name}-cam0", timeout=PATIENCE_S) as ring:
        poll(lambda: encodes(ring.stats()))
    camera.interrupt()
    encoder.end()

    encoder = started("gpuringsrc ring=edited")
    decoder = started("filesrc location=seen.mkv")
    commands.python(ours(PROGRAMS["edit.py"]), check=True)
    decoder.end()
    encoder.end()
    sizes = []
    for file in ("seen", "edited"):
        launch(
            f"filesrc location={tmp_path}/{file}.mkv ! matroskademux ! avdec_h264 "
            f"! videoconvert ! video/x-raw,format=GRAY8 ! filesink location={tmp_path}/{file}.raw"
        ).end()
        sizes.append((tmp_path / f"{file}.raw").stat().st_size)
    assert sizes[0] == sizes[1] > 0


def test_caps_of_the_page_are_taken(name, launch):
    (line,) = (each for each in PIPELINES if "caps=" in each)
    with gpuring.create(name, slots=2, shape=(4, 8, 3), dtype="u1", device="host") as ring:
        source = launch(line.replace("cam0", name))
        poll(lambda: ring.stats().subscriptions)
        with ring.producer() as producer:
            producer.claim(PATIENCE_S).publish()
        source.end()


def test_gst_inspect_knows_every_property_of_the_page(plugins):
    """The page may name properties of GstBaseSink, too."""
    known = ""
    for element in ("gpuringsink", "gpuringsrc"):
        said = subprocess.run(
            ["gst-inspect-1.0", element], env=os.environ | plugins, check=True, text=True,
            capture_output=True, timeout=PATIENCE_S,
        )  # fmt: skip
        known += said.stdout
    table = PAGE.partition("\n| elsewhere |")[2].partition("\n\n")[0]
    here = re.findall(r"^\|.* \| `([a-z-]+)`", table, re.M)
    assert {"ring", "timeout"} < {*here}
    for each in (*here, *re.findall(r"`([a-z-]+)=(?:true|false|1)`", PAGE)):
        assert f"\n  {each} " in known


def test_the_folder_of_the_elements(plugins):
    said = commands.module("gpuring.config", "--gst-plugin-path", check=True)
    assert said.stdout == f"{config.GSTREAMER}\n"
    assert plugins["GST_PLUGIN_PATH"].startswith(str(config.GSTREAMER))


def test_a_build_without_elements_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(config, "GSTREAMER", tmp_path)
    with pytest.raises(SystemExit, match="1"):
        config.main(["--gst-plugin-path"])
    assert "built without the elements of GStreamer" in capsys.readouterr().err
