"""Rings in memory that a program in C has allocated on a GPU.

The drivers are those of test_gpu.py.  What only a made-up one refuses has the fixture `fake`.
"""

from __future__ import annotations

import pytest

from tests.helpers.processes import poll
from tests.helpers.rings import segments_of
from tests.native.api.gpu_rings import (
    MEMORY,
    SHAPE,
    _is_supported,
    c,
    held,
    name,
    publishes,
    refuses,
)
from tests.native.api.puppet import Puppet

__all__ = ["_is_supported", "c", "name"]  # pytest finds the fixtures by it

GIVEN, NBYTES = 254, 2 << 20
KINDS = {"plain": "ipc", "virtual": "vmm"}
OF_EACH = pytest.mark.parametrize(("of", "kind"), KINDS.items(), ids=KINDS)


@pytest.fixture
def fake(request: pytest.FixtureRequest, driver: str) -> None:
    if driver != "fake":
        pytest.skip("it needs the made-up driver")


def allocates(program: Puppet, of: str, nbytes: int = NBYTES) -> None:
    program.ok("allocate", of, nbytes)
    program.ok("under", GIVEN, -1, 0, 0)


@OF_EACH
def test_a_ring_lies_in_memory_of_the_program(name, c, python, of, kind):
    """The memory may not be freed before nobody has the ring any more."""
    program, peer = c(), python()
    allocates(program, of)
    program.ok("give", 0, NBYTES)
    assert program.ok("has-given")["has"] == "0"
    program.ok("create", name, 4, 0o600, *SHAPE)
    found = program.ok("info")
    assert (int(found["memory"]), found["device"]) == (MEMORY[kind], "0")
    assert peer("attach", name)["memory"] == kind
    peer("consume")
    program.ok("produce", "-")
    for k in range(1, 6):  # every slot, and one again
        publishes(program, k, k)
        assert peer("take") == k
    program.ok("close", 0)
    program.ok("detach")
    assert program.ok("has-given")["has"] == "1"
    peer("close")
    assert program.ok("has-given")["has"] == "0"
    program.ok("create", name, 4, 0o600, *SHAPE)
    program.ok("detach")
    program.ok("free")
    assert segments_of(name) == []
    program.end()


@pytest.mark.parametrize(
    ("nbytes", "give", "status", "told"),
    [
        (NBYTES, (256, NBYTES - 256), "DEVICE", "a part of an allocation: it begins 256 bytes"),
        (4 * NBYTES, (0, NBYTES), "DEVICE", f"{NBYTES} bytes of an allocation of {4 * NBYTES}"),
        (NBYTES, (0, 1023), "INVALID", "has 1023 bytes, and 4 slots of 256 bytes need 1024"),
    ],
    ids=["a part", "the begin", "small"],
)
def test_memory_that_cannot_have_the_slots_is_refused(name, c, nbytes, give, status, told):
    program = c()
    allocates(program, "plain", nbytes)
    program.ok("give", *give)
    found, text = program.refused("create", name, 4, 0o600, *SHAPE)
    assert (found, told in text) == (status, True), text
    assert segments_of(name) == []
    program.ok("give", 0, nbytes)
    program.ok("create", name, 4, 0o600, *SHAPE)
    program.ok("detach")


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("under", "give", "told"),
    [
        ((GIVEN, -1), (2**40, NBYTES), "is no memory of a GPU (cuPointerGetAttribute"),
        ((GIVEN, 1), (0, NBYTES), "is on GPU 0, and the ring is to be used under GPU 1"),
        ((GIVEN, -3), (0, NBYTES), "device must be a GPU's number"),
        ((GIVEN, -1), None, "`given` is NULL, and has to be the memory of its slots"),
        ((MEMORY["ipc"], 0), (0, NBYTES), "is for memory that is GPURING_MEMORY_GIVEN"),
    ],
    ids=["no memory", "another GPU", "no GPU", "nothing", "another kind"],
)
def test_what_cannot_be_given_is_refused(name, c, under, give, told):
    program = c()
    allocates(program, "plain")
    program.ok("under", *under, 0, 0)
    if give:
        program.ok("give", *give)
    status, text = program.refused("create", name, 4, 0o600, *SHAPE)
    assert (status, told in text) == ("INVALID", True), text
    assert segments_of(name) == []


@OF_EACH
def test_memory_that_a_ring_has_is_not_given_to_a_second_one(name, c, of, kind):
    program = c()
    allocates(program, of)
    program.ok("give", 0, NBYTES)
    program.ok("create", name, 4, 0o600, *SHAPE)
    status, text = program.refused("create", f"{name}-2", 4, 0o600, *SHAPE)
    assert (status, f"the slots of ring '{name}' already" in text) == ("INVALID", True), text
    assert segments_of(f"{name}-2") == []


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("of", "calls"),
    [
        ("plain", ("cuCtxSynchronize", "cuMemGetAddressRange_v2", "cuIpcGetMemHandle")),
        ("virtual", ("cuMemRetainAllocationHandle", "cuMemExportToShareableHandle", "cuMemMap")),
    ],
    ids=KINDS,
)
def test_a_refused_call_leaves_the_memory_of_the_program_alone(name, c, of, calls):
    program = c()
    allocates(program, of)
    program.ok("give", 0, NBYTES)
    before = held(program)
    for call in calls:
        refuses(program, call)
        status, text = program.refused("create", name, 4, 0o600, *SHAPE)
        assert (status, "CUDA_ERROR_42" in text) == ("DEVICE", True), (call, text)
        assert program.ok("device-status") == {"status": "42"}
        assert segments_of(name) == []
        poll(lambda: held(program) == before)
    refuses(program)
    program.ok("create", name, 4, 0o600, *SHAPE)
    program.ok("detach")
    poll(lambda: held(program) == before)
    program.ok("free")
