"""How long a process keeps the memory of a GPU ring, and when it is found again.

The GPU is made up (fake_gpu.py).  test_gpu_memory.py has a real one.
"""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpuring.errors import DeviceError, RingIncompatible
from gpuring.memory.cuda import CudaMemory, Slots
from tests.helpers.processes import PATIENCE_S, poll
from tests.memory import EPOCH, FIELD, KINDS, NBYTES, SLOTS
from tests.memory.fake_gpu import UUIDS, Gpu


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def create(kind: str) -> CudaMemory:
    memory = CudaMemory.create(kind, EPOCH, SLOTS, NBYTES, 0)
    memory.lend()
    return memory


def attach(kind: str, memory: CudaMemory, gpu: Gpu, device: int = 0, **other: Any) -> CudaMemory:
    wanted = Slots(other.get("handle", memory.handle), UUIDS[0], SLOTS, NBYTES, EPOCH)
    return CudaMemory.open(kind, wanted, device, ring="cam0", fetch=gpu.descriptor)


def opened(kind: str, gpu: Gpu, epoch: bytes = EPOCH, device: int = 0) -> CudaMemory:
    """The memory of another process's ring, opened here."""
    handle = (SLOTS * NBYTES).to_bytes(8, "little").ljust(64, b"\0")
    wanted = Slots(handle, UUIDS[0], SLOTS, NBYTES, epoch)
    return CudaMemory.open(kind, wanted, device, ring="cam0", fetch=gpu.descriptor)


def close(memory: CudaMemory, *, others: bool = False) -> list[str]:
    """Closes a handle.  Returns what `then` has noted when the last array of the handle is gone."""
    ended: list[str] = []
    memory.close(others=others, then=lambda: ended.append("ended"))
    return ended


def test_the_creator_gives_back_all_that_it_has(gpu, kind):
    memory = create(kind)
    assert (memory.descriptor >= 0) is (kind != "ipc")
    array = memory.array(1, FIELD, (NBYTES,), writable=True)
    ended = close(memory)
    assert memory.descriptor == -1
    del memory
    assert gpu.has, "the array keeps the memory"
    assert not ended
    del array
    gc.collect()
    assert (gpu.has, gpu.open_fds(), ended) == ({}, 0, ["ended"])


def test_the_creator_keeps_what_may_not_be_freed_while_others_have_it(gpu, kind):
    memory = create(kind)
    assert close(memory, others=True) == ["ended"]
    del memory
    gc.collect()
    assert gpu.kept() == ([] if kind == "vmm" else ["allocated"])
    assert gpu.open_fds() == (kind == "pool")


def test_whoever_attaches_in_the_creators_process_has_the_same_memory(gpu, kind):
    memory = create(kind)
    again = attach(kind, memory, gpu)
    assert again.descriptor == memory.descriptor
    close(memory)
    array = again.array(0, FIELD, (NBYTES,), writable=True)
    assert gpu.has[array.data.ptr] == ("mapped to write" if kind == "vmm" else "allocated")
    assert "opened" not in gpu.has.values()
    close(again)
    del array, memory, again
    gc.collect()
    assert (gpu.has, gpu.open_fds()) == ({}, 0)


def test_only_the_creators_own_handle_decides_that_the_memory_goes(gpu, kind):
    memory = create(kind)
    close(attach(kind, memory, gpu), others=False)
    close(memory, others=True)
    del memory
    gc.collect()
    assert gpu.kept() == ([] if kind == "vmm" else ["allocated"])


def test_under_another_gpu_the_same_memory_is_reached(gpu, kind):
    memory = create(kind)
    other = attach(kind, memory, gpu, device=1)
    array = other.array(0, FIELD, (NBYTES,), writable=False)
    assert (memory.device, other.device, array.device.id) == (0, 1, 1)
    assert gpu.reached == ([] if kind == "vmm" else [1])
    close(memory)
    assert gpu.has, "the array keeps the memory"
    close(other)
    del array, memory, other
    gc.collect()
    assert (gpu.has, gpu.open_fds()) == ({}, 0)


def test_who_has_no_such_memory_opens_it_once(gpu, kind):
    first = opened(kind, gpu)
    second = attach(kind, first, gpu)
    arrays = [each.array(0, FIELD, (NBYTES,), writable=False) for each in (first, second)]
    assert len({array.data.ptr for array in arrays}) == 1
    assert len(gpu.fds) == (kind != "ipc")
    assert close(first, others=True) == []
    assert close(second, others=True) == []
    del first, second, arrays
    gc.collect()
    left = [what for what in gpu.kept() if what != "allocated"]
    assert (left, gpu.open_fds()) == ([], 0)


def waits_for_a_mutex(thread: int) -> bool:
    """Whether a thread is in FUTEX_WAIT_PRIVATE.  A wait for the GIL uses another system call."""
    return Path(f"/proc/self/task/{thread}/syscall").read_text().split()[2:3] == ["0x80"]


@pytest.mark.parametrize("kind", ["vmm", "pool"])
def test_memory_that_is_given_back_before_another_thread_has_opened_it_is_fetched(
    gpu, kind, monkeypatch
):
    """The other thread waits for a thread that opens another ring."""
    is_inside, may_go_on, threads = threading.Event(), threading.Event(), []

    def opens_slowly(gpu: Gpu, out: Any, *_: Any) -> int:
        is_inside.set()
        may_go_on.wait(PATIENCE_S)
        return gpu._gives(out, "opened")

    def opens_again() -> CudaMemory:
        threads.append(threading.get_native_id())
        return opened(kind, gpu)

    monkeypatch.setitem(Gpu.CALLS, "cuIpcOpenMemHandle_v2", opens_slowly)
    memory = opened(kind, gpu)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(opened, "ipc", gpu, EPOCH[::-1])
        assert is_inside.wait(PATIENCE_S)
        again = pool.submit(opens_again)
        poll(lambda: bool(threads) and waits_for_a_mutex(threads[0]))
        close(memory, others=True)
        del memory
        assert gpu.open_fds() == 0
        may_go_on.set()
        both = [each.result(PATIENCE_S) for each in (other, again)]
    assert len(gpu.fds) == 2
    for each in both:
        close(each, others=True)


def test_the_error_says_what_to_do_where_there_is_no_room(gpu, kind):
    gpu.full = True
    with pytest.raises(DeviceError, match="allocating 4 MiB for the slots on GPU 0") as caught:
        create(kind)
    fix = "or stop who else uses that GPU"
    if kind != "ipc":
        fix = "stop who else uses that GPU, or take `memory` ipc"
    assert str(caught.value).endswith(f"Use fewer or smaller slots, {fix}")
    assert (gpu.has, gpu.open_fds()) == ({}, 0)


def test_a_size_that_does_not_fit_the_slots_is_refused(gpu):
    memory = create("vmm")
    with pytest.raises(RingIncompatible, match="its memory has 4194303 bytes, not 4 × 1048576"):
        attach("vmm", memory, gpu, handle=(4194303).to_bytes(64, "little"))
