"""Frames of a GPU, from a pipeline to Python and from Python to a pipeline.

The pipelines are whole: cudaupload and cudadownload of GStreamer, and our elements.  Their driver
has no GPU (fake_graphics.c).  With the marker `gpu` the same tests use a real one.
"""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

from gpuring import config
from gpuring.memory import kinds
from tests.conftest import gpu_missing
from tests.gstreamer.gpu import calls_log, driver, environment, fake_gpu, memory, name, registries
from tests.gstreamer.gpu_frames import read_all, read_until_lost, write_all
from tests.gstreamer.pictures import pictures, planes_of
from tests.helpers.processes import PATIENCE_S, up
from tests.helpers.rings import small_ring

__all__ = ["calls_log", "driver", "environment", "fake_gpu", "memory", "name", "registries"]
FORMATS = ("NV12", "I420", "YV12", "RGB", "BGRx")
SIZE = (325, 241)
"""Rows have gaps in a file, and other ones on a GPU."""
FRAME_NS = 40_000_000
SMALL = "video/x-raw,format=RGB,width=64,height=36,framerate=25/1"
ON_GPU = "video/x-raw(memory:CUDAMemory)"
HOST = "video/x-raw"


def video(form, size=SIZE, frames=12):
    width, height = size
    caps = f"{HOST},format={form},width={width},height={height},framerate=25/1"
    return f"videotestsrc num-buffers={frames} ! {caps}"


def same(one, other):
    assert one.keys() == other.keys()
    for each in one:
        np.testing.assert_array_equal(one[each], other[each])


def dice_of(form, size=SIZE, frames=12):
    """Pictures of noise."""
    dice = np.random.default_rng(1)
    planes = planes_of(form, *size)
    return planes, [
        {each.name: dice.integers(0, 250, each.shape).astype(each.dtype) for each in planes}
        for _ in range(frames)
    ]


def caps_of(form, size=SIZE):
    return f"{HOST},format={form},width={size[0]},height={size[1]},framerate=25/1"


# ---- every byte ----------------------------------------------------------------------------------


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("form", FORMATS)
def test_pictures_of_a_pipeline_in_python(form, driver, name, launch, children, tmp_path):
    file = tmp_path / "in.raw"
    source = launch(
        f"{video(form)} ! tee name=t ! queue ! cudaupload ! gpuringsink ring={name} readers=1 "
        f"memory=auto t. ! queue ! filesink location={file}"
    )
    reader = children(read_all, driver, name, method="spawn")
    assert reader.receive() in kinds.ON_GPU
    read = reader.result()
    source.end()
    expected = list(pictures(file.read_bytes(), planes_of(form, *SIZE)))
    assert len(read) == len(expected) == 12
    for k, ((arrays, pts, caps), picture) in enumerate(zip(read, expected, strict=True)):
        same(arrays, picture)
        assert pts == k * FRAME_NS
        assert f"video/x-raw, format=(string){form}" in caps


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("form", FORMATS)
def test_pictures_of_python_in_a_pipeline(form, driver, name, launch, children, tmp_path):
    file = tmp_path / "out.raw"
    planes, sent = dice_of(form)
    writer = up(children(write_all, driver, name, "auto", sent, caps_of(form), method="spawn"))
    target = launch(f"gpuringsrc ring={name} ! cudadownload ! {HOST} ! filesink location={file}")
    writer.result()
    target.end()
    for picture, expected in zip(pictures(file.read_bytes(), planes), sent, strict=True):
        same(picture, expected)


@pytest.mark.slow(keep=1)
def test_each_kind_of_memory(memory, driver, name, launch, children, tmp_path):
    """The frames go through a pipeline between two rings, in which no CPU looks at them."""
    _, sent = dice_of("NV12", frames=30)
    caps = caps_of("NV12")
    writer = up(children(write_all, driver, f"{name}-a", memory, sent, caps, method="spawn"))
    middle = launch(
        f"gpuringsrc ring={name}-a ! {ON_GPU} "
        f"! gpuringsink ring={name}-b memory={memory} readers=1 slots=3"
    )
    reader = children(read_all, driver, f"{name}-b", method="spawn")
    assert reader.receive() == memory
    writer.result()
    for (picture, pts, _), (k, expected) in zip(reader.result(), enumerate(sent), strict=True):
        same(picture, expected)
        assert pts == k * FRAME_NS
    middle.end()


# ---- lives ---------------------------------------------------------------------------------------


def test_a_source_follows_to_a_ring_of_other_caps(driver, name, launch):
    target = launch(
        f"gpuringsrc ring={name} reattach=true ! cudadownload ! {HOST} "
        f"! fakesink silent=false sync=false", "-v",
    )  # fmt: skip
    for size in ((64, 36), (128, 72)):
        launch(
            f"{video('RGB', size)} ! cudaupload ! gpuringsink ring={name} readers=1 memory=auto"
        ).end()
    said = target.until("width=(int)128", 1)
    said += target.until("chain", 12)
    assert "width=(int)64" in said


def test_a_killed_sink_is_told_of(driver, name, launch, children):
    sink = launch(
        f"{video('RGB', frames=-1)} ! cudaupload ! gpuringsink ring={name} readers=1 memory=auto"
    )
    reader = children(read_until_lost, driver, name, method="spawn")
    assert reader.receive() == "frames"
    sink.kill()
    assert reader.receive() in ("PeerLost", "FrameTorn")
    reader.result()


def test_a_killed_source_holds_up_nobody(driver, name, launch, children):
    _, sent = dice_of("RGB", (64, 36), frames=200)
    writer = up(children(write_all, driver, name, "auto", sent, SMALL, method="spawn"))
    source = launch(
        f"gpuringsrc ring={name} ! cudadownload ! {HOST} ! fakesink silent=false sync=false", "-v"
    )
    source.until("chain", 5)
    source.kill()
    writer.result()


def test_a_ctrl_c_ends_a_sink_that_waits_for_its_reader(driver, name, launch):
    sink = launch(
        f"{video('RGB', frames=-1)} ! cudaupload ! identity silent=false "
        f"! gpuringsink ring={name} readers=1 memory=auto", "-v",
    )  # fmt: skip
    sink.until("chain", 1)
    assert "ERROR" not in sink.interrupt()


# ---- what does not fit ---------------------------------------------------------------------------


def test_a_ring_on_a_gpu_needs_a_download_before_elements_of_the_host(
    driver, name, launch, children
):
    _, sent = dice_of("RGB", (64, 36), frames=3)
    writer = up(children(write_all, driver, name, "auto", sent, SMALL, method="spawn"))
    said = launch(f"gpuringsrc ring={name} ! {HOST} ! fakesink").end(1)
    assert "Put cudadownload behind gpuringsrc" in said
    writer.result()


def test_frames_of_a_gpu_do_not_go_into_a_ring_of_the_host(driver, name, launch):
    with small_ring(name, slots=2, shape=(36, 64, 3)):
        said = launch(
            f"{video('RGB', (64, 36))} ! cudaupload ! {ON_GPU} "
            f"! gpuringsink ring={name} create=false"
        ).end(1)
    assert "Put cudadownload before gpuringsink" in said


def test_frames_of_the_host_do_not_go_into_a_ring_on_a_gpu(driver, name, launch, children):
    _, sent = dice_of("RGB", (64, 36), frames=3)
    writer = up(children(write_all, driver, name, "auto", sent, SMALL, method="spawn"))
    said = launch(f"{video('RGB', (64, 36))} ! gpuringsink ring={name} create=false").end(1)
    assert "Put cudaupload before gpuringsink" in said
    writer.kill()


def test_memory_says_which_frames_are_taken(driver, name, launch):
    """cudaupload passes frames of the host on unchanged if the sink takes them."""
    said = launch(
        f"{video('RGB', (64, 36))} ! cudaupload ! gpuringsink ring={name} memory=host", "-v"
    ).end()
    assert f"gpuringsink0.GstPad:sink: caps = {ON_GPU}" not in said
    said = launch(
        f"{video('RGB', (64, 36))} ! cudaupload ! gpuringsink ring={name} memory=auto", "-v"
    ).end()
    assert f"gpuringsink0.GstPad:sink: caps = {ON_GPU}" in said


# ---- without the libraries -----------------------------------------------------------------------


def test_nothing_is_linked_to_the_libraries_of_a_gpu():
    if not config.has_gstreamer():
        pytest.skip("built without GStreamer's development files")
    plugin = config.GSTREAMER / "libgstgpuring.so"
    said = subprocess.run(
        ["readelf", "-d", plugin], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    )
    needed = [line for line in said.stdout.splitlines() if "NEEDED" in line]
    assert needed
    assert not [line for line in needed if "cuda" in line]


@pytest.mark.parametrize("driver", ["fake"], indirect=True)
def test_without_a_driver_there_are_no_caps_of_a_gpu(driver, environment, monkeypatch):
    def caps():
        said = subprocess.run(
            ["gst-inspect-1.0", "gpuringsrc"], env=os.environ | environment, check=True, text=True,
            capture_output=True, timeout=PATIENCE_S,
        )  # fmt: skip
        return said.stdout

    assert ON_GPU in caps()
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    if gpu_missing() is None:
        pytest.skip("this machine has a driver")
    assert ON_GPU not in caps()
    assert HOST in caps()
