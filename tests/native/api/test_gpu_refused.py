"""The errors that a program in C gets about GPUs, and what it leaves behind when a call is refused.

The driver is programs/fake_libcuda.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuring
from tests.helpers.processes import poll
from tests.helpers.rings import segments_of
from tests.native.api.gpu_rings import (
    FORTY_TWO,
    MEMORY,
    SHAPE,
    create,
    held,
    name,
    refuses,
)
from tests.native.api.puppet import Puppet

__all__ = ["name"]  # pytest finds the fixture by it


@pytest.fixture
def driver(fake_libcuda: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_libcuda))
    monkeypatch.setenv("FAKE_CUDA_LOG", str(tmp_path / "calls"))
    return "fake"


@pytest.fixture(
    params=[
        "linked",
        pytest.param("sanitized", marks=[pytest.mark.slow, pytest.mark.deadline(400)]),
    ]
)
def program(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def c(driver: str, program: Any, puppets: Callable[..., Puppet]) -> Puppet:
    return puppets(program)


# ---- no CUDA -------------------------------------------------------------------------------------


def test_rings_that_the_cpu_uses_touch_no_cuda(name, c, calls):
    for kind in ("host", "pinned"):
        c.ok("under", MEMORY[kind], -1, 0, 0)
        c.ok("create", name, 4, 0o600, *SHAPE)
        end = c.ok("info")
        assert (end["device"], end["mapped"]) == ("-1", "0")
        joined = c("produce", "-").split()[1]
        c.ok("claim", joined, 0, 0)
        c.ok("publish", joined, 1, 1, 1)
        c.ok("close", joined)
        c.ok("detach")
    assert calls(c.pid) == []
    maps = Path(f"/proc/{c.pid}/maps").read_text()
    assert "libcuda" not in maps


def test_the_creator_of_a_ring_that_the_cpu_uses_goes_on_without_cuda(
    name, c, linked, puppets, calls
):
    other = puppets(linked)
    for program in (c, other):
        program.ok("under", MEMORY["pinned"], -1, 0, 0)
        program("replaces", 2)
        program.ok("create", name, 4, 0o600, *SHAPE)
        if program is c:
            c.ok("consume", "-", -2, "r")
    other.ok("produce", "-", "-")
    other.ok("claim", 0, 0, 0)
    other.ok("publish", 0, 1, 7, 7)
    got = c.ok("acquire", 0, 20 * 10**9, 0)
    assert (got["first"], got["restarted"]) == ("7", "1")
    assert calls(c.pid) == []
    for program in (c, other):
        program.ok("close", 0)
        program.ok("detach")


def test_without_a_driver_the_error_says_so(name, linked, puppets, monkeypatch, tmp_path):
    (tmp_path / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    program = puppets(linked)
    program.ok("under", MEMORY["ipc"], 0, 0, 0)
    status, text = program.refused("create", name, 4, 0o600, *SHAPE)
    assert status == "DEVICE"
    assert text.startswith("there is no NVIDIA driver (")
    assert text.endswith("; use device='host' (in C GPURING_MEMORY_HOST)")
    assert segments_of(name) == []


# ---- what cannot be ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("under", "fields", "status", "told"),
    [
        ((1, 7, 0, 0), SHAPE, "DEVICE", "there is no GPU 7: this process sees 2"),
        ((1, -3, 0, 0), SHAPE, "INVALID", "device must be a GPU's number, 0 or more, not -3"),
        ((9, 0, 0, 0), SHAPE, "INVALID", "there is no kind of memory with number 9"),
        ((1, 0, 7, 0), SHAPE, "INVALID", "no sync of number 7"),
        ((0, 0, 0, 0), SHAPE, "INVALID", "a host ring needs none"),
        ((4, 0, 1, 0), SHAPE, "INVALID", "a pinned ring has `sync` timeline"),
        ((1, 0, 0, 0), ("a", '[["x","<f4"]]', 4, ","), "INVALID", "cannot be an array on a GPU"),
        ((1, 0, 0, 0), ("a", "|S4", 4, ","), "INVALID", "cannot be an array on a GPU"),
    ],
)
def test_what_cannot_be_leaves_nothing(name, c, under, fields, status, told):
    c.ok("under", *under)
    found, text = c.refused("create", name, 4, 0o600, *fields)
    assert (found, told in text) == (status, True), text
    assert segments_of(name) == []
    create(c, name, "ipc")
    c.ok("detach")
    c.end()


def test_a_host_ring_takes_no_device_and_no_stream(name, c):
    with gpuring.create(name, slots=4, shape=4, dtype="u1", device="host"):
        c.ok("under", 0, 0, 0, 0)
        status, text = c.refused("attach", name, 0)
        assert (status, "it takes no device" in text) == ("INVALID", True)
        c.ok("under", 0, -1, 0, 0)
        c.ok("attach", name, 0)
        c.ok("produce", "-")
        c.ok("claim", 0, 0, 0)
        status, text = c.refused("use-on", 0, 0)
        assert (status, "it takes no stream" in text) == ("INVALID", True)


@pytest.mark.parametrize(
    ("attributes", "kind", "made"),
    [
        ("", "auto", ("ipc", "vmm")),  # the second one in a container
        (",18=1,", "auto", ("vmm",)),
        (",18=1,102=0,", "auto", ("pinned",)),
        (",119=0,", "pool", ()),
        (",102=0,", "vmm", ()),
        (",18=1,", "ipc", ()),
    ],
)
def test_what_the_gpu_lacks_decides_the_kind(name, c, attributes, kind, made):
    c.ok("setenv", "FAKE_CUDA_ATTRIBUTES", attributes or ",")
    if made:
        create(c, name, kind)
        assert int(c.ok("info")["memory"]) in {MEMORY[each] for each in made}
        c.ok("detach")
    else:
        c.ok("under", MEMORY[kind], 0, 0, 0)
        status, text = c.refused("create", name, 4, 0o600, *SHAPE)
        assert (status, text.endswith("Use `memory` auto")) == ("DEVICE", True), text
        assert text.startswith(f"`memory` {kind}: GPU 0 ")


def test_without_a_timeline_auto_takes_events_and_the_gate_of_the_host(name, c):
    c.ok("setenv", "FAKE_CUDA_ATTRIBUTES", ",122=0,")
    create(c, name, "ipc")
    found = c.ok("info")
    assert (found["sync"], found["gate"]) == ("1", "2")
    c.ok("detach")
    c.ok("under", MEMORY["ipc"], 0, 2, 0)
    status, text = c.refused("create", name, 4, 0o600, *SHAPE)
    assert (status, text.startswith("`sync` timeline: GPU 0 has no 64-bit")) == ("DEVICE", True)


# ---- calls that are refused ----------------------------------------------------------------------


CREATING = {
    "ipc": ("cuMemAlloc_v2", "cuIpcGetMemHandle", "cuMemHostRegister_v2"),
    "vmm": (
        *("cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle"),
        *("cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"),
    ),
    "pool": (
        *("cuMemPoolCreate", "cuMemAllocFromPoolAsync", "cuMemPoolExportToShareableHandle"),
        "cuMemPoolExportPointer",
    ),
}
OPENING = {
    "ipc": ("cuIpcOpenMemHandle_v2", "cuMemHostGetDevicePointer_v2"),
    "vmm": ("cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"),
    "pool": (
        *("cuMemPoolImportFromShareableHandle", "cuMemPoolSetAccess", "cuMemPoolImportPointer"),
    ),
}


@pytest.mark.parametrize("kind", CREATING)
def test_a_refused_call_of_create_leaves_nothing(name, c, kind):
    c.ok("under", MEMORY[kind], 0, 0, 0)
    for call in CREATING[kind]:
        refuses(c, call)
        status, text = c.refused("create", name, 4, 0o600, *SHAPE)
        assert (status, "CUDA_ERROR_42" in text) == ("DEVICE", True), (call, text)
        assert c.ok("device-status") == {"status": FORTY_TWO}
        assert segments_of(name) == []
        assert held(c) == (0, 0), call
    refuses(c)
    create(c, name, kind)
    c.ok("detach")
    assert held(c) == (0, 0)


@pytest.mark.parametrize("kind", OPENING)
def test_a_refused_call_of_attach_leaves_nothing(name, c, linked, puppets, kind):
    other = puppets(linked)
    create(c, name, kind)
    other.ok("under", 0, 0, 0, 0)
    for call in OPENING[kind]:
        refuses(other, call)
        status, text = other.refused("attach", name, 0)
        assert (status, name in text or "header" in text) == ("DEVICE", True), (call, text)
        assert other.ok("device-status") == {"status": FORTY_TWO}
        poll(lambda: held(other) == (0, 0))  # a thread closes what others have sent
    refuses(other)
    other.ok("attach", name, 0)
    other.ok("detach")
    poll(lambda: held(other) == (0, 0))
    other.end()
    c.ok("detach")
    c.end()


def test_slots_that_cuda_does_not_register_are_used_by_the_cpu(name, c):
    refuses(c, "cuMemHostRegister_v2")
    create(c, name, "pinned")
    found = c.ok("info")
    assert (found["device"], found["mapped"]) == ("0", "0")
    c.ok("produce", "-")
    c.ok("claim", 0, 0, 0)
    c.ok("use-on", 0, 0)  # that stream is not ordered
    c.ok("publish", 0, 1, 3, 3)
    with gpuring.attach(name) as ring, ring.consumer(start="oldest") as frames:
        with frames.acquire(5) as slot:
            assert (slot.array == 3).all()
        (peer,) = [each for each in ring.stats().peers if each.role == "producer"]
        assert peer.unregistered == f"CUresult ({FORTY_TWO})"
    c.ok("close", 0)
    c.ok("detach")


def test_a_stream_that_takes_nothing_is_told_and_the_claim_is_given_up(name, c):
    c.ok("gpu", 0)
    create(c, name, "ipc")
    c.ok("produce", "-")
    c.ok("consume", "x", -2, "-")
    c.ok("stream", 0, 1)
    c.ok("claim", 0, 0, 0)
    refuses(c, "cuStreamWriteValue64_v2")
    status, text = c.refused("publish", 0, 1, -1, 0)
    assert status == "DEVICE"
    assert text == (
        "stream 0x1000 does not take the ring's waits and records (CUDA_ERROR_42); is it a stream "
        "of GPU 0?"
    )
    assert c.ok("device-status") == {"status": FORTY_TWO}
    refuses(c)
    c.ok("claim", 0, 0, 0)
    c.ok("publish", 0, 1, -1, 1)
    assert c.ok("acquire", 1, 0, 0)["meta"] == "1"  # the first one carries no frame


# ---- in which order ------------------------------------------------------------------------------


def test_the_waits_and_the_fence_writes_go_into_the_streams_of_the_calls(name, c, calls):
    c.ok("gpu", 0)
    create(c, name, "ipc", "timeline")
    c.ok("produce", "-")
    c.ok("consume", "x", -2, "-")
    c.ok("stream", 0, 1)
    c.ok("stream", 1, 2)
    c.ok("hold", 1)
    c.ok("claim", 0, 0, 0)
    c.ok("fill", 0, 1, 1)
    c.ok("publish", 0, 1, -1, 0)
    c.ok("acquire", 1, 0, 0)
    c.ok("read", 1, 2)
    c.ok("release", 1, 1)
    c.ok("go")
    one, other = 0x1000, 0x1001
    ordered = [
        ("cuStreamWaitValue64_v2", one),  # the hold
        ("cuMemsetD8Async", one),
        ("cuStreamWriteValue64_v2", one),
        ("cuStreamWaitValue64_v2", other),
        ("cuMemcpyAsync", other),  # to memory of the GPU, and from there
        ("cuMemcpyAsync", other),
        ("cuStreamWriteValue64_v2", other),
    ]
    names = {call for call, _ in ordered}
    assert [each for each in calls(c.pid) if each[0] in names] == ordered
    assert c.ok("seen", 2)["all"] == "1"


def test_with_the_gate_of_the_host_no_stream_waits(name, c, calls):
    c.ok("gpu", 0)
    create(c, name, "ipc", "timeline", "host")
    c.ok("produce", "-")
    c.ok("consume", "x", -2, "-")
    c.ok("stream", 0, 1)
    c.ok("hold", 1)
    c.ok("claim", 0, 0, 0)
    c.ok("fill", 0, 1, 8)
    c.ok("publish", 0, 1, -1, 0)
    assert c.refused("acquire", 1, 0, 0)[0] == "TIMEOUT"
    c.ok("go")
    c.ok("acquire", 1, 10 * 10**9, 0)
    waits = [each for each in calls(c.pid) if each[0] == "cuStreamWaitValue64_v2"]
    assert waits == [("cuStreamWaitValue64_v2", 0x1000)]  # the hold


def test_a_consumer_in_c_cannot_write_virtual_memory(name, c, linked, puppets):
    create(c, name, "vmm")
    c.ok("gpu", 0)
    c.ok("produce", "-")
    c.ok("claim", 0, 0, 0)
    c.ok("fill", 0, 0, 5)
    c.ok("publish", 0, 1, -1, 0)
    reader = puppets(linked)
    reader.ok("gpu", 0)
    reader.ok("under", 0, 0, 0, 0)
    reader.ok("attach", name, 0)
    reader.ok("consume", "x", -2, "-")
    reader.ok("acquire", 0, 0, 0)
    reader.ok("read", 0, 0)
    assert reader.ok("seen", 0)["all"] == "5"
    reader.tell("fill", 0, 0, 6)  # writes as a kernel would, which kills the process
    with pytest.raises(AssertionError, match="it has ended: -11"):
        reader.hear()
    c.ok("close", 0)
    c.ok("detach")
