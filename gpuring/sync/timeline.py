"""Device order by 64-bit words: streams write and await the fence table of the header itself.

The table is registered with CUDA, so the fence word that the CPU reads for free is the one that
`cuStreamWriteValue64` stores when a stream gets there and `cuStreamWaitValue64` waits for.  A
stream that waits for a dead peer goes on when the reaper stores that peer's fence.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from gpuring._core import Header, Peer
from gpuring.errors import DeviceError
from gpuring.memory.cuda_ipc import load_cupy
from gpuring.sync.device import NOT_READY, DeviceSync
from gpuring.sync.streams import PER_THREAD

# CUstreamWaitValue_flags, CUstreamWriteValue_flags.  The default write is ordered behind all
# earlier work of its stream, as seen from the whole system.
_GEQ = 0
_WRITE_DEFAULT = 0
# cudaHostRegisterPortable | cudaHostRegisterMapped: for every context, and for the GPU's access.
_PORTABLE_MAPPED = 1 | 2

_MAX_STREAMS = 64  # streams whose wrappers are remembered


def supported(device: int) -> tuple[bool, str]:
    """Whether rings on GPU `device` can have a timeline, and if not, why, in one line."""
    try:
        driver = _driver()
        runtime = load_cupy().cuda.runtime
        attributes = driver.CUdevice_attribute
        driver.cuInit(0)
        status, has_words = driver.cuDeviceGetAttribute(
            attributes.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device
        )
        if status:
            return (
                False,
                f"GPU {device} does not tell whether it has stream waits ({_name(status)})",
            )
        if not has_words:
            return False, f"GPU {device} has no 64-bit stream waits"
        if not runtime.deviceGetAttribute(runtime.cudaDevAttrHostRegisterSupported, device):
            return False, f"GPU {device} cannot map host memory that CUDA did not allocate"
    except DeviceError as error:
        return False, str(error)
    except RuntimeError as error:  # CuPy's CUDARuntimeError; cuda-bindings that find no driver
        return False, f"GPU {device} cannot be asked about stream waits ({error})"
    return True, ""


def _driver() -> Any:
    """The module with the calls that CuPy lacks.  Raises DeviceError."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        try:
            return importlib.import_module("cuda.cuda")  # cuda-python before 12.6
        except ImportError:
            raise DeviceError(
                f"cuda-bindings cannot be imported ({error}): pip install 'gpuring[cuda12]' or, "
                "for a CUDA 13 driver, 'gpuring[cuda13]'"
            ) from error


def _name(status: Any) -> str:
    return getattr(status, "name", None) or f"CUresult {int(status)}"


class TimelineSync(DeviceSync):
    """gpuring.sync.Sync by words."""

    name = "timeline"

    def __init__(self, header: Header, device: int) -> None:
        """Registers the header's fence table with CUDA.  Raises DeviceError."""
        super().__init__(header, device)
        driver = _driver()
        self._write = driver.cuStreamWriteValue64
        self._wait = driver.cuStreamWaitValue64
        self._make_stream = driver.CUstream
        self._make_address = driver.CUdeviceptr
        self._streams: dict[int, Any] = {}
        self._rows: list[list[Any] | None] = [None] * header.max_peers
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
        with self._cuda.Device(device):
            status, base = driver.cuMemHostGetDevicePointer(address, 0)
        if status:
            self._unregister()
            raise DeviceError(
                f"GPU {device} has no address for the ring's header ({_name(status)})"
            )
        self._base = int(base)

    def join(self, peer: Peer, gate: str) -> None:
        """Nothing to make: the words are in the header."""
        self._gate(peer, gate)

    def leave(self, peer: Peer) -> None:
        """Waits on the host until the GPU has written what the peer promised; Ctrl-C interrupts.

        Raises DeviceError if the GPU reports an error instead, as EventSync.leave does.
        """
        self._finish_unsettled(peer)
        if not peer.drained():
            with self._cuda.Device(self._device):
                self._poll(partial(self._paid, peer))

    def _paid(self, peer: Peer) -> bool:
        if peer.drained():
            return True
        status = self._runtime.streamQuery(PER_THREAD)  # any stream tells of a lost context
        if status not in (0, NOT_READY):
            error = self._error(status)
            raise DeviceError(f"peer {peer.number} cannot finish its GPU work: {error}") from error
        return False

    def record(self, peer: Peer, index: int, value: int, streams: Sequence[int]) -> None:
        """Enqueues a write of `value` to the peer's word, behind all work so far on `streams`."""
        number = peer.number
        stream = self._behind(streams)
        word = (self._rows[number] or self._row(number))[index]
        wrapped = self._streams.get(stream) or self._wrap(stream)
        status = self._write(wrapped, word, value, _WRITE_DEFAULT)[0]
        if status:
            raise DeviceError(
                f"fence {value} of slot {index} cannot be written by stream {stream:#x} "
                f"({_name(status)})"
            )

    def order(self, peer: Peer, stream: int, owner: int, index: int, value: int) -> bool:
        """Orders `stream` after fence[index][owner] >= value; see gpuring.sync.Sync."""
        if self._header.fence(owner, index) >= value:
            return True
        if peer.number in self._host_gated:
            return peer.wait_fence(owner, index, value)
        stream = self._usable(stream)
        word = (self._rows[owner] or self._row(owner))[index]
        wrapped = self._streams.get(stream) or self._wrap(stream)
        status = self._wait(wrapped, word, value, _GEQ)[0]
        if status:
            raise DeviceError(
                f"stream {stream:#x} cannot wait for peer {owner}'s fence {value} of slot {index} "
                f"({_name(status)})"
            )
        return True

    def close(self) -> None:
        """Unregisters the fence table.  Waits for this process's work on the GPU: a wait that is
        still in some stream reads the table."""
        self._unregister()

    def _row(self, peer: int) -> list[Any]:
        """Where the GPU has the words of one peer, as arguments for the driver."""
        offset = self._header.fence_offset
        row = self._rows[peer] = [
            self._make_address(self._base + offset(peer, index))
            for index in range(self._header.slots)
        ]
        return row

    def _wrap(self, stream: int) -> Any:
        """The argument for the driver that a handle makes: a value, so it cannot go stale."""
        if len(self._streams) >= _MAX_STREAMS:
            self._streams = {}
        wrapped = self._streams[stream] = self._make_stream(stream)
        return wrapped


def _unregister(header: Header, address: int, device: int, cuda: Any) -> None:
    """`header` keeps the table mapped until this is done."""
    if header.forked:  # after fork() a child may not touch CUDA
        return
    try:
        with cuda.Device(device):
            cuda.runtime.deviceSynchronize()
            cuda.runtime.hostUnregister(address)
    except cuda.runtime.CUDARuntimeError:
        pass  # the context is lost, and the registration with it
