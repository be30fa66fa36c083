"""A made-up GPU that forked workers have as well (tests/memory/fake_gpu.py has the rest of it).

Its memory is a mapping that processes share.  The torch of these tests may have no CUDA.  So this
module takes the place of the functions that gpuring.torch calls there: a tensor is on the GPU if
its bytes are in the mapping.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Callable, Iterator
from multiprocessing import Value
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.utils.data._utils import collate

from gpuring.memory import cuda
from gpuring.ring import ordering
from gpuring.torch import places
from gpuring.torch.parcel import aligned
from tests.memory.fake_gpu import Gpu, Handle, put

if TYPE_CHECKING:
    import pytest

NBYTES = 64 << 20
STREAM = 0x70
"""The handle of torch's current stream."""
_p, _u64 = ctypes.c_void_p, ctypes.c_uint64


class SharedGpu(Gpu):
    """Only GPU 0 is used."""

    def __init__(self) -> None:
        super().__init__()
        self._memory = mmap.mmap(-1, NBYTES)
        self.begin = np.frombuffer(self._memory, np.uint8).ctypes.data
        self._end = Value("q", 0)
        """Bytes that were given out, by all processes.  None come back."""
        self._records = [Value("q", 0), Value("q", 0)]
        self.cannot_be_opened = False
        """Whether workers cannot open its memory."""
        self.finishes = True
        """Whether the GPU gets to what this process enqueues from now on."""

    def allocate(self, nbytes: int) -> int:
        with self._end:
            begin = aligned(self._end.value)
            self._end.value = begin + nbytes
        assert begin + nbytes <= NBYTES, "the memory of the GPU is used up"
        return self.begin + begin

    def at(self, address: int, nbytes: int) -> torch.Tensor:
        """The bytes there."""
        begin = address - self.begin
        return torch.from_numpy(np.frombuffer(self._memory, np.uint8)[begin : begin + nbytes])

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """The tensor that values.to("cuda") would be."""
        memory = self.at(self.allocate(values.nbytes), values.nbytes)
        there = memory.view(values.dtype).as_strided(values.shape, values.stride())
        return there.copy_(values)

    def has_tensor(self, leaf: Any) -> bool:
        if not isinstance(leaf, torch.Tensor):
            return False
        return 0 <= leaf.data_ptr() - self.begin < NBYTES

    def put_in_place_of_cuda(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes it the driver, and torch's CUDA."""
        self.put_in_place(monkeypatch)
        monkeypatch.setattr(cuda, "timeline_supported", lambda _: (True, ""))
        device = functools.partial(ordering.Device, driver=self.table)
        monkeypatch.setattr(ordering, "Device", device)

        for name, answer in {
            "place_of": lambda leaf: 0 if self.has_tensor(leaf) else places.HOST,
            "on": self._on,
            "wait": lambda place: None,
            "stream_of": lambda place: None if place == places.HOST else STREAM,
            "copy_of": lambda tensor, _: self.tensor(tensor),
            "bytes_of": lambda array: self.at(array.data.ptr, array.nbytes),
        }.items():
            monkeypatch.setattr(places, name, answer)
        stacked = collate.collate_tensor_fn

        def stack(samples: Any, **more: Any) -> torch.Tensor:
            batch: torch.Tensor = stacked(samples, **more)
            return self.tensor(batch) if self.has_tensor(samples[0]) else batch

        monkeypatch.setattr(collate, "collate_tensor_fn", stack)
        monkeypatch.setitem(collate.default_collate_fn_map, torch.Tensor, stack)

    @contextlib.contextmanager
    def _on(self, place: int) -> Iterator[None]:
        self.stack.append(max(place, 0))
        try:
            yield
        finally:
            self.stack.pop()

    def _gives_memory(self, out: int, nbytes: int) -> int:
        if self.full:
            return 2
        address = self.allocate(nbytes)
        put(out, _u64, address)
        self.has[address] = "allocated"
        return 0

    def _opens(self, out: int, handle: Handle, _: int) -> int:
        if self.cannot_be_opened:
            return 1
        address = int.from_bytes(bytes(handle.bytes[:8]), "little")
        put(out, _u64, address)
        self.has[address] = "opened"
        return 0

    def records(self) -> tuple[int, int]:
        """How often all processes have recorded the end of their work on a slot: on streams other
        than the current one, and on the current one."""
        others, current = self._records
        return others.value, current.value

    def _stores(self, stream: int | None, address: int, value: int, _: int) -> None:
        with (count := self._records[stream == STREAM]):
            count.value += 1
        if self.finishes:
            put(address, _u64, value)

    ARGUMENTS: ClassVar[dict[str, tuple[Any, ...]]] = {
        **Gpu.ARGUMENTS,
        "cuStreamWriteValue64_v2": (_p, _u64, _u64, ctypes.c_uint),
    }
    CALLS: ClassVar[dict[str, Callable[..., int | None]]] = {
        **Gpu.CALLS,
        "cuMemAlloc_v2": _gives_memory,
        "cuIpcOpenMemHandle_v2": _opens,
        "cuStreamWriteValue64_v2": _stores,
    }
