"""Peers with a GPU and peers without one in one ring: who waits for whom, and where.

The driver is made up (fake_driver.py).  `finish` lets its GPU do what was enqueued.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

import gpuring
from gpuring.cli.inspect import describe, gpus
from gpuring.registry.survey import collect
from tests.helpers.fake_driver import C, P, uuid_of
from tests.helpers.processes import PATIENCE_S
from tests.helpers.promise import promise
from tests.helpers.rig import held_by


@pytest.fixture
def mixed(rig):
    """A ring with a peer of each kind and role: (rig, camera, gpu reader, gpu writer, recorder)."""
    ring = rig("pinned")
    camera = ring.producer(ring=ring.by_cpu())
    reader = ring.consumer("model", stream=C)
    writer = ring.producer(stream=P)
    recorder = ring.consumer("disk", ring=ring.by_cpu())
    return ring, camera, reader, writer, recorder


def waits(ring):
    return [call for call in ring.told() if call[0] in ("wait", "waits")]


@promise(
    "failure.md",
    "No stream waits for them, because their work is done when they publish or release.",
)
def test_a_frame_of_the_cpu_is_there_for_streams_at_once(mixed):
    ring, camera, reader, _, recorder = mixed
    camera.claim_many(4, 0).publish()
    assert ring.paid(camera)
    reader.acquire_many(4, 0).release()
    recorder.acquire_many(4, 0).release()
    assert waits(ring) == []
    assert (ring.paid(recorder), ring.paid(reader)) == (True, False)


@promise(
    "failure.md",
    "Its peers wait themselves for the GPU work of the others, whatever the gate.",
)
def test_the_cpu_waits_until_a_frame_of_a_gpu_is_written(mixed):
    ring, _, reader, writer, recorder = mixed
    writer.claim(0).publish()
    reader.acquire(0).release()
    assert waits(ring) != []
    for verb in (
        lambda: recorder.acquire(0),
        lambda: recorder.acquire_many(2, 0),
        lambda: asyncio.run(recorder.acquire_async(0.01)),
    ):
        with pytest.raises(gpuring.RingTimeout, match="GPU work"):
            verb()
        assert held_by(recorder) == []
    timer = threading.Timer(0.01, ring.finish)
    timer.start()
    with recorder.acquire(PATIENCE_S) as slot:
        assert (slot.seq, slot.lost, slot.redelivered) == (4, 0, False)
    timer.join()


def test_a_lossless_camera_waits_for_the_upload_and_voids_nothing(mixed):
    ring, camera, reader, _, recorder = mixed
    camera.claim_many(4, 0).publish()
    recorder.acquire_many(4, 0).release()
    uploading = reader.acquire_many(4, 0)
    with pytest.raises(gpuring.RingFull, match="has held"):
        camera.claim(0)
    uploading.release()  # the copies are enqueued, but not done
    for verb in (lambda: camera.claim(0), lambda: camera.claim_many(2, 0)):
        with pytest.raises(gpuring.RingFull, match=r"GPU work .*sequence 8 "):
            verb()
    assert [ring.segment.slot(k)[2] for k in range(4)] == ["ready"] * 4
    timer = threading.Timer(0.01, ring.finish)
    timer.start()
    camera.claim(PATIENCE_S).publish()
    timer.join()
    assert reader.acquire(0).seq == 8


def test_a_gpu_writer_waits_for_nobodys_cpu(mixed):
    """A CPU's work on a slot is complete when its peer ends the slot."""
    ring, camera, reader, writer, recorder = mixed
    ring.lap(camera, reader, recorder)
    ring.finish()
    writer.claim_many(4, 0).publish()
    assert waits(ring) == []
    reader.acquire_many(4, 0).release()
    ring.finish()
    recorder.acquire_many(4, 0).release()
    camera.claim(0).publish()


@promise(
    "failure.md",
    "A pinned ring has peers with a GPU and peers without one, and it has a timeline.",
)
@pytest.mark.parametrize("sync", ["event", "host"])
def test_a_pinned_ring_has_a_timeline(segment, sync):
    with pytest.raises(ValueError, match="sync is"):
        segment(memory="pinned", sync=sync)


@promise(
    "failure.md",
    "Its peers wait themselves for the GPU work of the others, whatever the gate.",
)
def test_a_gate_of_the_ring_is_that_of_its_gpu_peers(rig):
    for gate in ("stream", "host"):
        ring = rig("pinned")
        assert ring.producer(ring=ring.by_cpu(), gate=gate)._peer.gate_host is True
        assert ring.consumer(gate=gate)._peer.gate_host is (gate == "host")


def test_only_peers_with_a_gpu_take_streams(mixed):
    _, camera, reader, writer, recorder = mixed
    with pytest.raises(TypeError, match="in host memory: it takes no stream"):
        camera.claim(0, stream=P)
    with camera.claim(0) as slot, pytest.raises(TypeError, match="takes no stream"):
        slot.use_on(P)
    with pytest.raises(TypeError, match="takes no stream"):
        recorder.acquire(0, stream=C)
    reader.acquire(0, stream=C).release()
    writer.claim(0, stream=P).publish()


@promise(
    "failure.md",
    "A pinned ring has peers with a GPU and peers without one, and it has a timeline.",
)
def test_the_tools_tell_the_peers_apart(mixed):
    ring, camera, reader, writer, recorder = mixed
    seen = collect("r", ring.segment.creator)
    with_gpu = {peer.number for peer in seen.peers if peer.gpu}
    assert with_gpu == {reader.peer, writer.peer}
    assert (seen.gpu, {peer.unregistered for peer in seen.peers}) == (None, {None})
    line = f"its slots are in host memory; peers {reader.peer} and {writer.peer} use GPU"
    assert gpus(seen).startswith(line)
    assert gpus(seen) in " ".join(describe(seen).split())
    assert {camera.peer, recorder.peer}.isdisjoint(with_gpu)


def test_a_peer_that_is_not_registered_says_why(rig):
    ring = rig("pinned")
    process = ring.by_cpu()
    process._header.uses_gpu(uuid_of(1), 304)
    reader = ring.consumer(ring=process)
    (peer,) = collect("r", ring.segment.creator).peers
    assert peer.unregistered == "CUDA_ERROR_OPERATING_SYSTEM (304)"
    assert peer.gpu is not None
    text = " ".join(describe(collect("r", ring.segment.creator)).split())
    assert f"peer {reader.peer} waits for each of its copies" in text
    assert "CUDA_ERROR_OPERATING_SYSTEM (304)" in text
    reader.close()
    ring.peers.remove(reader)
    again = ring.consumer(ring=ring.by_cpu())
    assert again.peer == peer.number
    (peer,) = collect("r", ring.segment.creator).peers
    assert (peer.gpu, peer.unregistered) == (None, None)


# ---- deaths with copies pending -----------------------------------------------------------------


def test_a_frame_whose_copy_was_cut_off_is_told_to_readers_of_both_kinds(mixed):
    ring, camera, reader, writer, recorder = mixed
    writer.claim(0).publish()  # copy_from is enqueued, but not done
    with pytest.raises(gpuring.RingTimeout, match="GPU work"):
        recorder.acquire(0)
    slot = reader.acquire(0)
    ring.kill(writer)
    camera.claim(0).publish()
    with pytest.raises(gpuring.FrameTorn):
        slot.check()
    with pytest.raises(gpuring.FrameTorn):
        slot.release()
    with recorder.acquire(PATIENCE_S) as frame:
        assert frame.seq == 5
    torn = {peer.number: peer.torn for peer in collect("r", ring.segment.creator).peers}
    assert torn[recorder.peer] == 1


def test_a_cpu_that_waits_for_the_gpu_work_of_the_dead_goes_on(mixed):
    ring, camera, _, writer, recorder = mixed
    writer.claim(0).publish()
    camera.claim(0).publish()
    timer = threading.Timer(0.01, ring.kill, (writer,))
    timer.start()
    with recorder.acquire(PATIENCE_S) as frame:
        assert frame.seq == 5
    timer.join()


def test_a_camera_goes_on_when_a_reader_dies_with_its_upload_pending(mixed):
    ring, camera, reader, _, recorder = mixed
    camera.claim_many(4, 0).publish()
    recorder.acquire_many(4, 0).release()
    reader.acquire_many(4, 0).release()
    with pytest.raises(gpuring.RingFull, match="GPU work"):
        camera.claim(0)
    ring.kill(reader)
    camera.claim_many(4, 0).publish()
    assert [slot.seq for slot in recorder.acquire_many(4, 0)] == [8, 9, 10, 11]


def test_a_gpu_writer_goes_on_when_a_recorder_dies_with_a_frame(mixed):
    ring, _, reader, writer, recorder = mixed
    writer.claim_many(4, 0).publish()
    ring.finish()
    reader.acquire_many(4, 0).release()
    ring.finish()
    recorder.acquire(0)
    with pytest.raises(gpuring.RingFull, match="has held"):
        writer.claim(0)
    ring.kill(recorder)
    assert writer.claim_many(4, 0)[0].seq == 8


def test_a_peer_leaves_behind_its_own_copies_only(mixed):
    """A camera that leaves waits for no GPU.  A reader that leaves waits for its uploads."""
    ring, camera, reader, _, recorder = mixed
    camera.claim(0).publish()
    reader.acquire(0).release()
    recorder.acquire(0).release()
    for each in (camera, recorder):
        each.close()
        ring.peers.remove(each)
    assert not ring.paid(reader)
    reader.close()  # the driver finishes while it waits
    ring.peers.remove(reader)
    assert ring.paid(reader)
