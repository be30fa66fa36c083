"""Device order by 64-bit words: streams write and await the fence table of the header itself.

The table is registered with CUDA, so the fence word that the CPU reads for free is the one that
`cuStreamWriteValue64` stores when a stream gets there and `cuStreamWaitValue64` waits for.  A
stream that waits for a dead peer goes on when the reaper stores that peer's fence.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from gpuring import driver
from gpuring._core import Header, Peer
from gpuring.errors import DeviceError
from gpuring.memory.cuda_ipc import load_cupy
from gpuring.streams import PER_THREAD
from gpuring.sync.device import CAPTURE, NOT_READY, DeviceSync

# cudaHostRegisterPortable | cudaHostRegisterMapped: for every context, and for the GPU's access.
_PORTABLE_MAPPED = 1 | 2


def supported(device: int) -> tuple[bool, str]:
    """Whether rings on GPU `device` can have a timeline, and if not, why, in one line."""
    try:
        runtime = load_cupy().cuda.runtime
        if not driver.attribute(driver.CAN_USE_64_BIT_STREAM_MEM_OPS, device):
            return False, f"GPU {device} has no 64-bit stream waits"
        driver.function("cuStreamWaitValue64_v2")
        if not runtime.deviceGetAttribute(runtime.cudaDevAttrHostRegisterSupported, device):
            return False, f"GPU {device} cannot map host memory that CUDA did not allocate"
    except DeviceError as error:
        return False, str(error)
    except RuntimeError as error:  # CuPy's CUDARuntimeError
        return False, f"GPU {device} cannot be asked about stream waits ({error})"
    return True, ""


class TimelineSync(DeviceSync):
    """DeviceSync by words."""

    name = "timeline"

    def __init__(self, header: Header, device: int) -> None:
        """Registers the header's fence table with CUDA.  Raises DeviceError."""
        super().__init__(header, device)
        address, nbytes = header.fence_region
        try:
            self._enter()
            with self._cuda.Device(device):
                self._runtime.hostRegister(address, nbytes, _PORTABLE_MAPPED)
        except self._error as error:
            raise DeviceError(
                f"the ring's header cannot be mapped into GPU {device} ({error}). Create the ring "
                "with sync='event'"
            ) from error
        # It holds the header, so the table is never unmapped while CUDA has it.
        self._unregister = weakref.finalize(self, _unregister, header, address, device, self._cuda)
        self._unregister.atexit = False
        try:
            with self._cuda.Device(device):
                self._arm(driver.address_on_device(address))
        except DeviceError:
            self._unregister()
            raise

    def leave(self, peer: Peer) -> None:
        """Waits on the host until the GPU has written what the peer promised; Ctrl-C interrupts."""
        self._finish_unsettled(peer)
        if not peer.drained():
            with self._cuda.Device(self._device):
                self._poll(partial(self._paid, peer))

    def _paid(self, peer: Peer) -> bool:
        if peer.drained():
            return True
        status = self._runtime.streamQuery(PER_THREAD)  # any stream tells of a lost context
        if status not in (0, NOT_READY, *CAPTURE):  # another thread captures: no news
            error = self._error(status)
            raise DeviceError(f"peer {peer.number} cannot finish its GPU work: {error}") from error
        return False

    def record(self, peer: Peer, index: int, value: int, streams: Sequence[int]) -> None:
        """Enqueues a write of `value` to the peer's word, behind all work so far on `streams`."""
        stream = self._behind(streams)
        status = self.enqueue_write(stream, peer.number, index, value)
        if status:
            raise self.refused(stream, status)

    def order(self, peer: Peer, stream: int, owner: int, index: int, value: int) -> bool:
        """Orders `stream` after fence[index][owner] >= value; see DeviceSync.order."""
        if self._header.fence(owner, index) >= value:
            return True
        if peer.gate_host:
            return peer.wait_fence(owner, index, value)
        stream = self._usable(stream)
        status = self.enqueue_wait(stream, owner, index, value)
        if status:
            raise self.refused(stream, status)
        return True

    def close(self) -> None:
        """Unregisters the fence table.  Waits for this process's work on the GPU: a wait that is
        still in some stream reads the table."""
        self._unregister()


_registered: list[Header] = []
"""Closed while another thread's capture forbade to unregister them."""


def _unregister(header: Header, address: int, device: int, cuda: Any) -> None:
    """`header` keeps the table mapped until this is done."""
    if header.forked:  # after fork() a child may not touch CUDA
        return
    try:
        with cuda.Device(device):
            cuda.runtime.deviceSynchronize()
            cuda.runtime.hostUnregister(address)
    except cuda.runtime.CUDARuntimeError as error:
        if getattr(error, "status", None) in CAPTURE:
            # For good: what is mapped there next could not be registered.
            _registered.append(header)
        # Else the context is lost, and the registration with it.
