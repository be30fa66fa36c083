"""The order of copies on a GPU, and whose context they use."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.gstreamer.gpu import calls_log, driver, environment, fake_gpu, name, registries
from tests.gstreamer.gpu_frames import read_late, read_told_gpu, write_late
from tests.gstreamer.pictures import pictures, planes_of
from tests.helpers.processes import poll, up

__all__ = ["calls_log", "driver", "environment", "fake_gpu", "name", "registries"]
SIZE = (64, 36)
CAPS = "video/x-raw,format=RGB,width=64,height=36,framerate=25/1"


def calls_of(log, pid, name):
    lines = log.read_text().splitlines() if log.exists() else []
    return sum(line.split()[:2] == [str(pid), name] for line in lines)


def noise(frames):
    return f"videotestsrc pattern=snow num-buffers={frames} ! {CAPS}"


def test_a_frame_is_kept_until_it_was_copied_from(driver, name, launch, children, tmp_path):
    """The reader's stream still has the slot.  Meanwhile cudaupload has the next frame to write."""
    file, slots = tmp_path / "in.raw", 3
    launch(f"{noise(12)} ! filesink location={file}").end()
    source = launch(
        f"{noise(12)} ! cudaupload ! identity silent=false ! gpuringsink ring={name} readers=1 "
        f"memory=auto slots={slots} enable-last-sample=false", "-v",
    )  # fmt: skip
    reader = up(children(read_late, driver, name, slots, method="spawn"))
    source.until("chain", slots + 2)
    read = reader.finish()
    source.end()
    expected = list(pictures(file.read_bytes(), planes_of("RGB", *SIZE)))[slots:]
    for (picture, _, _), frame in zip(read, expected, strict=True):
        np.testing.assert_array_equal(picture["array"], frame["array"])


def test_a_frame_is_put_out_when_its_producer_has_written_it(
    driver, name, launch, children, tmp_path, calls_log
):
    file, shape = tmp_path / "out.raw", (36, 64, 3)
    writer = up(children(write_late, driver, name, shape, 7, method="spawn"))
    target = launch(
        f"gpuringsrc ring={name} ! cudadownload ! video/x-raw ! filesink location={file}"
    )
    writer.receive()
    if driver == "fake":  # it asks again and again whether the copy is done
        poll(lambda: calls_of(calls_log, target.pid, "cuStreamQuery") > 9)
    writer.finish()
    target.end()
    assert file.read_bytes() == bytes([7]) * 2 * int(np.prod(shape))


def test_a_frame_that_was_not_written_to_its_end_is_passed_over(
    driver, name, launch, children, tmp_path
):
    """The frame's producer is killed while its stream is held.  The source goes on with the next
    producer's frames."""
    file, shape = tmp_path / "out.raw", (36, 64, 3)
    writer = up(children(write_late, driver, name, shape, 7, method="spawn"))
    target = launch(
        f"gpuringsrc ring={name} reattach=true num-buffers=3 ! cudadownload ! video/x-raw "
        f"! filesink location={file}", "-v",
    )  # fmt: skip
    writer.receive()
    writer.kill()
    target.until("FRAME_TORN", 1)
    writer = up(children(write_late, driver, name, shape, 9, method="spawn"))
    writer.receive()
    writer.finish()
    target.end()
    picture = int(np.prod(shape))
    assert file.read_bytes() == bytes([7]) * picture + bytes([9]) * 2 * picture


@pytest.mark.parametrize("driver", ["fake"], indirect=True)
def test_a_pipeline_shares_the_primary_context(driver, name, launch, calls_log):
    """nvcodec makes a context for each of the two GPUs when it is loaded, to look at them."""
    sink = launch(f"{noise(3)} ! cudaupload ! gpuringsink ring={name} memory=auto")
    sink.end()
    assert calls_of(calls_log, sink.pid, "cuDevicePrimaryCtxRetain") > 0
    assert calls_of(calls_log, sink.pid, "cuCtxCreate_v2") == 2


def test_frames_of_another_context(driver, name, launch, tmp_path, calls_log):
    """A branch without a ring makes a context of its own."""
    first, last = tmp_path / "in.raw", tmp_path / "out.raw"
    launch(f"{noise(12)} ! filesink location={first}").end()
    target = launch(
        f"gpuringsrc ring={name} ! cudadownload ! video/x-raw ! filesink location={last}"
    )
    source = launch(
        f"{noise(12)} ! cudaupload ! gpuringsink ring={name} readers=1 memory=auto "
        f"{noise(3)} ! cudaupload ! cudadownload ! fakesink"
    )
    source.end()
    target.end()
    if driver == "fake":
        assert calls_of(calls_log, source.pid, "cuCtxCreate_v2") == 3
    assert first.read_bytes() == last.read_bytes()


# ---- the second GPU ------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["fake"], indirect=True)
@pytest.mark.parametrize("gpu", [0, 1])
def test_frames_are_on_the_gpu_that_the_source_was_told(driver, name, launch, children, gpu):
    """The sink behind the source makes its ring on the same GPU."""
    source = launch(f"{noise(12)} ! cudaupload ! gpuringsink ring={name}-a readers=1 memory=auto")
    middle = launch(
        f"gpuringsrc ring={name}-a cuda-device-id={gpu} ! gpuringsink ring={name}-b readers=1"
    )
    reader = children(read_told_gpu, driver, f"{name}-b", method="spawn")
    assert reader.receive() == gpu + 1  # as fake_libcuda numbers them
    assert reader.result() == 12
    source.end()
    middle.end()


@pytest.mark.parametrize("driver", ["fake"], indirect=True)
def test_the_next_element_shares_the_context_of_the_second_gpu(driver, name, launch, calls_log):
    """That element would make a context of its own if it got one of another GPU."""
    target = launch(
        f"gpuringsrc ring={name} cuda-device-id=1 ! cudadownload cuda-device-id=1 ! fakesink"
    )
    launch(f"{noise(3)} ! cudaupload ! gpuringsink ring={name} readers=1 memory=auto").end()
    target.end()
    assert calls_of(calls_log, target.pid, "cuCtxCreate_v2") == 2  # nvcodec's, to look at the GPUs


# ---- waits ---------------------------------------------------------------------------------------

NAP_S, SPINS = 100e-6, 500
"""How long a wait for the GPU sleeps between looks, and more looks than it makes before that."""


def check_naps(log, pid):
    """Checks that a wait asks again and again whether the stream is done, and sleeps between."""

    def looks():
        return calls_of(log, pid, "cuStreamQuery")

    begun, first = time.monotonic(), looks()
    poll(lambda: looks() > first + 4 * SPINS)
    assert (looks() - first - SPINS) * NAP_S < time.monotonic() - begun


@pytest.mark.parametrize("driver", ["fake"], indirect=True)
def test_a_source_sleeps_while_a_frame_is_written(driver, name, launch, children, calls_log):
    writer = up(children(write_late, driver, name, (36, 64, 3), 7, method="spawn"))
    target = launch(f"gpuringsrc ring={name} ! fakesink")
    writer.receive()
    check_naps(calls_log, target.pid)
    writer.finish()
    target.end()


@pytest.mark.parametrize("driver", ["fake"], indirect=True)
def test_a_sink_sleeps_while_a_frame_is_read(driver, name, launch, children, calls_log):
    source = launch(
        f"{noise(12)} ! cudaupload ! gpuringsink ring={name} readers=1 memory=auto slots=3"
    )
    reader = up(children(read_late, driver, name, 3, method="spawn"))
    check_naps(calls_log, source.pid)
    reader.finish()
    source.end()
