"""The far end of a session over NIXL: it offers the slots, and helps until frames are in them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from gpuring.bridge.engines.contract import EngineError, Slab
from gpuring.bridge.engines.nixl import bounce_buffer
from gpuring.bridge.engines.nixl.agent import End, current, host, translated
from gpuring.bridge.engines.nixl.offer import Offer
from gpuring.bridge.engines.nixl.write_permits import WritePermits
from gpuring.native import Driver

# CUdevice_attribute, CUGPUDirectRDMAWritesOrdering, CUflushGPUDirectRDMAWritesScope
_WRITES_ORDERING, _FLUSH_TO_ALL = 118, 200
_ITS_GPU, _ALL_GPUS = 100, 200


class Receiver(End):
    """contract.Receiver has what its methods are."""

    def __init__(self, slab: Slab) -> None:
        super().__init__(slab, bounce_buffer.slots_beside_far(slab))
        self._permits: WritePermits | None = None
        self._coming: set[int] = set()
        """Slots that the near end writes into and that need this end's help."""
        self._ready: list[int] = []
        self._flush: Callable[[], None] = lambda: None

    def open(self) -> bytes:
        slab = self.slab
        self.start(bounced=bounce_buffer.receiver_needs_one(slab))
        try:
            self._permits = WritePermits()
        except OSError as error:
            raise EngineError(f"no socket for this session: {error}") from error
        self.bell.also(self._permits.fileno())
        with translated("NIXL cannot offer the slots"):
            if slab.gpu is not None:
                readers = _ALL_GPUS if self.bounce is None else _ITS_GPU
                self._flush = _flush_of(slab.gpu, readers)
            agent = self.agent.get_agent_metadata()
        return Offer(
            pointer=self.reached.pointer,
            slots=self.reached.slots,
            slot_nbytes=slab.slot_nbytes,
            gpu=-1 if slab.gpu is None else slab.gpu,
            host=host(),
            hold=self._permits.name,
            agent=agent,
        ).written()

    def write(self, index: int, begin: int, part: Any) -> None:
        """The near end has begun to write into slot `index`.  The part has no data."""
        self._coming.add(index)
        self.bell.set(True)

    def finish(self, index: int, nbytes: int) -> None:
        self._coming.discard(index)
        with translated("the GPU cannot be made to see what the network wrote"):
            self._flush()
        if self.bounce is None:
            self._ready.append(index)
        else:
            source = self.bounce.slab.address(index % self.bounce.slab.slots)
            self.bounce.copies.start(index, self.slab.address(index), source, nbytes)
        self.bell.set(True)

    def poll(self) -> list[int]:
        """Lets UCX work while frames are coming."""
        if self._permits is not None and not self._coming:  # else the near end was admitted
            self._permits.admit()
        if self._coming and self.agent is not None:
            with translated("the network failed"), current(self.slab.gpu):
                self.agent.get_new_notifs()
        ready, self._ready = self._ready, []
        if self.bounce is not None:
            ready += self.bounce.copies.done()
        self.bell.set(self.busy)
        return ready

    @property
    def busy(self) -> bool:
        copying = self.bounce is not None and self.bounce.copies.pending
        return bool(self._coming or copying or self._ready)

    def close(self) -> None:
        """Ends the session.  Waits until a near end on this host writes no more, and for the
        copies."""
        self._coming, self._ready = set(), []
        self.destroy()
        permits, self._permits = self._permits, None
        if permits is not None:
            permits.end()
        self.give_back()
        self.bell.close()


def _flush_of(gpu: int, readers: int) -> Callable[[], None]:
    """What makes writes of a network card into the memory of `gpu` visible to that GPU or to all.
    Nothing, where they always are."""
    if Driver().attribute(_WRITES_ORDERING, gpu) >= readers:
        return lambda: None
    flush = ctypes.CDLL("libcuda.so.1").cuFlushGPUDirectRDMAWrites

    def flushed() -> None:
        with current(gpu):
            status = flush(0, _FLUSH_TO_ALL)
        if status:
            raise OSError(f"cuFlushGPUDirectRDMAWrites: CUresult {status}")

    return flushed
