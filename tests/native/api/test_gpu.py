"""Rings on GPUs: a program in C at one end, Python at the other, or C at both.

Each process has a driver without a GPU (programs/fake_libcuda), whose memory is the host's and
whose streams are real queues.  With the marker `gpu` the same tests use a real one.  A stream that
is held has work pending until the puppet is told to go on.
"""

from __future__ import annotations

import pytest

from tests.helpers.processes import poll
from tests.helpers.rings import segments_of
from tests.native.api.gpu_peer import Peer
from tests.native.api.gpu_rings import (
    BUSY,
    MEMORY,
    OF_EACH,
    SHAPE,
    SYNC,
    TIMELINE,
    _is_supported,
    attach,
    c,
    create,
    name,
    publishes,
    reads,
    sees,
)
from tests.native.api.puppet import Puppet

__all__ = ["_is_supported", "c", "name"]  # pytest finds the fixtures by it


def consumes(program: Puppet) -> None:
    """Joins a consumer that uses stream 2."""
    program.ok("consume", "x", -2, "-")
    program.ok("stream", 0, 2)


def still_reads_a_frame_of(peer: Peer, program: Puppet) -> None:
    """Holds the reading of a frame until the test lets it go on.  The host has released the frame
    already."""
    peer("write", 1)
    program.ok("acquire", 0, 5 * 10**9, 0)
    program.ok("hold", 2)
    program.ok("read", 0, 2)
    program.ok("release", 0, 1)


# ---- C and Python --------------------------------------------------------------------------------


@pytest.mark.slow(keep=2)
@OF_EACH
def test_python_reads_what_the_stream_of_c_has_written(name, c, python, kind, sync):
    program, peer = c(), python()
    create(program, name, kind, sync)
    told = peer("attach", name)
    assert told == {"memory": kind, "sync": sync, "gate": "stream", "slots": 4}
    program.ok("produce", "-")
    peer("consume")
    program.ok("hold", 1)
    publishes(program, 7, 99)
    assert peer("acquire")[1] == 99  # although its bytes are not written yet
    assert program.ok("query", 1)["status"] == str(BUSY)
    program.ok("go")
    assert peer("read") == 7
    peer("release")
    for k in range(1, 10):  # every slot again
        publishes(program, k, k)
        assert peer("take") == k
    peer("close")
    program.leaves()
    assert segments_of(name) == []


@pytest.mark.slow(keep=2)
@OF_EACH
def test_the_stream_of_c_reads_what_python_has_written(name, c, python, kind, sync):
    program, peer = c(), python()
    peer("create", name, device="cuda", memory=kind, sync=sync)
    attach(program, name)
    found = program.ok("info")
    assert (int(found["memory"]), int(found["sync"])) == (MEMORY[kind], SYNC[sync])
    assert (found["device"], found["mapped"]) == ("0", "1")
    peer("produce")
    consumes(program)
    for k in range(1, 10):
        peer("write", k)
        reads(program, k)
    program.leaves()
    peer("close")
    assert segments_of(name) == []


@pytest.mark.slow(keep=2)
@OF_EACH
def test_a_producer_does_not_overwrite_what_a_stream_of_c_still_reads(name, c, python, kind, sync):
    program, peer = c(), python()
    peer("create", name, device="cuda", memory=kind, sync=sync)
    attach(program, name)
    peer("produce")
    consumes(program)
    still_reads_a_frame_of(peer, program)
    for k in range(2, 6):  # the last one is in the slot that is still read
        peer("write", k)
        if k < 5:
            program.ok("acquire", 0, 5 * 10**9, 0)
            program.ok("release", 0, 1)
    program.ok("go")
    assert program.ok("seen", 2)["all"] == "1"
    program.ok("acquire", 0, 5 * 10**9, 0)
    sees(program, 5)
    program.ok("release", 0, 1)


@pytest.mark.slow(keep=2)
@OF_EACH
def test_a_slot_that_is_used_on_a_second_stream_waits_for_it_too(name, c, kind, sync):
    program = c()
    create(program, name, kind, sync)
    program.ok("produce", "-")
    program.ok("consume", "x", -2, "-")
    program.ok("stream", 0, 1)
    program.ok("stream", 1, 2)
    program.ok("claim", 0, 0, 0)
    program.ok("hold", 3)
    program.ok("use-on", 0, 3)
    program.ok("fill", 0, 3, 9)
    program.ok("publish", 0, 1, -1, 0)
    program.ok("acquire", 1, 0, 0)
    program.ok("read", 1, 2)
    assert program.ok("query", 2)["status"] == str(BUSY)
    program.ok("go")
    assert program.ok("seen", 2)["all"] == "9"
    program.ok("release", 1, 1)
    assert program.refused("use-on", 1, 3)[0] == "INVALID"
    program.ok("close", 0)
    program.ok("close", 1)
    program.ok("detach")


def test_a_pinned_ring_has_peers_by_the_cpu_and_on_gpus(name, c, python):
    program, peer = c(), python()
    program.ok("under", MEMORY["pinned"], -1, 0, 0)
    program.ok("create", name, 4, 0o600, *SHAPE)
    assert program.ok("info")["device"] == "-1"
    program.ok("produce", "-")
    peer("attach", name)
    peer("consume", "x")
    program.ok("claim", 0, 0, 0)
    program.ok("publish", 0, 1, 5, 50)  # by the CPU
    assert peer("acquire") == (4, 50)
    assert peer("read") == 5
    peer("release")
    other = c()
    attach(other, name)
    other.ok("consume", "y", -2, "-")
    program.ok("claim", 0, 0, 0)
    program.ok("publish", 0, 1, 6, 60)
    other.ok("acquire", 0, 0, 0)
    got = other.ok("acquire", 0, 5 * 10**9, 0)
    assert got["first"] == "6"  # for the CPU it is there, too
    other.ok("read", 0, 0)
    assert other.ok("seen", 0)["all"] == "6"


# ---- deaths --------------------------------------------------------------------------------------


@pytest.mark.slow
@TIMELINE
def test_a_frame_of_c_that_its_gpu_had_not_written_is_torn(name, c, python, kind, sync):
    program, peer = c(), python()
    peer("create", name, device="cuda", memory=kind, sync=sync)
    attach(program, name)
    peer("consume")
    program.ok("produce", "-")
    publishes(program, 1, 1)
    assert peer("take") == 1
    program.ok("hold", 1)
    publishes(program, 2, 2)
    assert peer("acquire")[1] == 2
    program.kill()
    assert peer.refused("release_torn")[0] == "FrameTorn"


@pytest.mark.slow
@TIMELINE
def test_a_reader_in_c_that_dies_holds_up_nobody(name, c, python, kind, sync):
    program, peer = c(), python()
    peer("create", name, device="cuda", memory=kind, sync=sync)
    attach(program, name)
    peer("produce")
    consumes(program)
    still_reads_a_frame_of(peer, program)
    program.kill()
    poll(lambda: peer("consumers") == 0)
    for k in range(2, 10):
        peer("write", k)
    peer("finish")


@pytest.mark.slow
@TIMELINE
def test_a_producer_in_python_that_dies_leaves_c_its_whole_frames(name, c, python, kind, sync):
    program, peer = c(), python()
    create(program, name, kind, sync)
    peer("attach", name)
    consumes(program)
    peer("produce")
    for k in (1, 2):
        peer("write", k)
    peer("finish")
    peer.kill()
    for k in (1, 2):
        reads(program, k)
    assert program.refused("acquire", 0, 20 * 10**9, 0)[0] == "PEER_LOST"


def test_nobody_new_opens_ipc_memory_when_its_creator_is_dead(name, c, driver):
    program, inside, late = c(), c(), c()
    create(program, name, "ipc")
    attach(inside, name)
    program.kill()
    late.ok("under", 0, 0, 0, 0)
    status, text = late.refused("attach", name, 0)
    assert status == "PEER_LOST"
    assert f"the process that created it (pid {program.pid}) is dead" in text


@pytest.mark.parametrize("kind", ["vmm", "pool"])
def test_a_ring_by_descriptor_outlives_its_creator(name, c, python, kind):
    program, inside, late = c(), c(), python()
    create(program, name, kind)
    attach(inside, name)
    inside.ok("produce", "-")
    program.kill()
    late("attach", name)
    late("consume")
    publishes(inside, 3, 3)
    assert late("acquire")[1] == 3
    assert late("read") == 3
    late("release")


def test_memory_that_others_use_outlives_its_ring(name, c, python, driver, calls):
    program, peer = c(), python()
    create(program, name, "ipc")
    peer("attach", name)
    peer("consume")
    program.ok("produce", "-")
    publishes(program, 4, 4)
    program.ok("close", 0)
    program.ok("detach")
    assert peer("take") == 4
    freed = ("cuMemFree_v2", 0)
    assert freed not in calls(program.pid)
    peer("close")
    create(program, name, "ipc")  # by which the other one is freed
    assert driver == "real" or freed in calls(program.pid)
    program.ok("detach")
