"""A bounce buffer: memory of the worker's own that the network reaches, where it cannot reach the
slots of the ring.

CUDA shares memory only from the process that has allocated it, and the worker of an importer has
the slots from its supervisor.  And of the kinds of GPU memory NIXL 1.5 is fast with `cudaMalloc`
only (issue 1754 of ai-dynamo/nixl).  So frames go through a buffer of `cudaMalloc` on the same GPU,
and one copy moves them between it and their slots.

If a worker is killed while such a copy is pending, the slot is safe all the same.  The claim, or
the frame that was acquired, is given up when the process is gone, and its GPU work is gone before
that.  So are the copies of the other engine.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace

from gpuring.bridge.engines.contract import EngineError, Slab
from gpuring.bridge.engines.gpu_copies import Copies, on_gpu
from gpuring.memory import cuda, driver

_NBYTES, _FEWEST = 128 << 20, 4
"""The buffer beside a near ring has this length, but at least so many slots: some are copied to
while others are in the network."""

_spare: dict[int, tuple[cuda.Mapping, int]] = {}
"""Memory that a session which is over has left, by GPU, and its size.  The next one takes it
if it is large enough.  The other process has it mapped for as long as it lives, because UCX keeps
what it has opened, and CUDA advises against freeing memory that is mapped elsewhere."""


def sender_needs_one(slab: Slab) -> bool:
    """Whether frames of a near ring go through a bounce buffer."""
    return slab.memory in ("vmm", "pool")


def receiver_needs_one(slab: Slab) -> bool:
    """Whether frames for a far ring do."""
    if slab.gpu is None:
        return False
    with contextlib.suppress(Exception), on_gpu(slab.gpu):
        driver.export_plain(slab.pointer)
        return False
    return True


def slots_beside_near(slab: Slab) -> int:
    """How many slots the buffer beside a near ring has.  Which of them a frame takes is a matter of
    the near end, so frames can wait for one."""
    return min(slab.slots, max(_FEWEST, _NBYTES // slab.slot_nbytes))


def slots_beside_far(slab: Slab) -> int:
    """How many slots the buffer beside a far ring has.  A frame for slot `i` goes through slot `i`
    modulo this number, which divides that of the ring's slots.  So no two frames in flight have the
    same one, because their sequences are less than `slab.window` apart."""
    return next(n for n in range(slab.window, slab.slots + 1) if slab.slots % n == 0)


class BounceBuffer:
    """The buffer of one end of a session."""

    def __init__(self, ring: Slab, slots: int) -> None:
        """`slots`: how many slots of the ring, which is on a GPU, it has room for.  Raises
        EngineError if there is no memory for it."""
        assert ring.gpu is not None
        self._gpu, self._memory = ring.gpu, _take(ring.gpu, slots * ring.slot_nbytes)
        self.copies = Copies(ring.gpu)
        self.slab = replace(
            ring,
            pointer=self._memory[0].ptr,
            slots=slots,
            memory="ipc",
            owner=self._memory,
        )

    def close(self) -> None:
        """Waits for the copies, and gives the memory to the next session.  Nobody else may reach it
        any more."""
        self.copies.close()
        _spare[self._gpu] = self._memory


def reserve(gpu: int, nbytes: int) -> None:
    """Reserves memory for the next buffer.  Raises EngineError if there is none."""
    _spare[gpu] = _take(gpu, nbytes)


def _take(gpu: int, nbytes: int) -> tuple[cuda.Mapping, int]:
    spare = _spare.pop(gpu, None)
    if spare is not None and spare[1] >= nbytes:
        return spare
    del spare  # freed after all: there may not be room for both
    try:
        with on_gpu(gpu):
            made = cuda.uninterrupted(gpu, functools.partial(cuda.plain, nbytes, gpu))
            driver.export_plain(made.ptr)  # refused where processes cannot share it
            return made, nbytes
    except EngineError as error:
        needed = f"a bounce buffer of {-(-nbytes >> 20)} MiB that processes can share"
        raise EngineError(f"there is no memory for {needed} ({error})") from error
