"""A batch on its way: its tensors lie in slots, and the rest goes through torch's queue.

What lies in host memory is in one slot, and what lies on a GPU in one on that GPU.

A batch is pickled as torch pickles it, but a number stands for each tensor.  So whatever the
tensors are in, also an object of the user's own class, comes out as it went in.  What cannot lie in
a slot, such as a sparse tensor, is pickled with the rest.

The tensors of a slot are in *pieces*.  A large one is a piece by itself, and small neighbours are
one.  A piece has its own memory when it has arrived, so a program that keeps the labels of a batch
does not keep its images.
"""

from __future__ import annotations

import io
import math
import pickle
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Leaf = torch.Tensor | np.ndarray
"""What may lie in a slot."""

inlets: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""The inlets of this process, by name (inlet.py).  A parcel finds its inlet here."""

ALIGNMENT = 256
"""Bytes.  A tensor begins at a multiple of it, as in memory that CUDA allocates."""
SMALL_NBYTES = 64 << 10
"""A tensor of fewer bytes shares its piece with its neighbours."""

_DTYPES = {
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
        *("complex64", "complex128"),
    )
    if hasattr(torch, name)
}


class Kind(NamedTuple):
    """What a leaf is."""

    dtype: Any
    """torch's, or NumPy's of an array."""
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    """In elements.  (): those of a C-contiguous one."""

    @property
    def nbytes(self) -> int:
        nbytes: int = self.dtype.itemsize * math.prod(self.shape)
        return nbytes

    @classmethod
    def of(cls, leaf: Leaf) -> Kind:
        """A tensor whose elements lie without gaps keeps their order (channels_last)."""
        if isinstance(leaf, np.ndarray):
            return cls(leaf.dtype, leaf.shape)
        return cls(
            leaf.dtype,
            tuple(leaf.shape),
            () if leaf.is_contiguous() or not _is_dense(leaf) else leaf.stride(),
        )


class Pickled:
    """An object for torch's queue that is pickled already.  It comes out of the queue unpickled.

    So if it cannot be pickled, or there is no room in /dev/shm, that is an error of the batch.  In
    a queue it would be an error of the worker, or a thread of the queue would drop it silently.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    @classmethod
    def of(cls, obj: Any) -> Pickled:
        return cls(bytes(ForkingPickler.dumps(obj)))

    @property
    def is_simple(self) -> bool:
        """Whether any pickler will do."""
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._data,)


class Piece(NamedTuple):
    frame: int
    """The number of its frame among those of the batch."""
    begin: int
    """Its first byte there."""
    kind: Kind
    """The kind of its only leaf.  If it has several, or an array of NumPy, it is bytes."""


class Layout(NamedTuple):
    """What batches that are made alike have in common.  It is sent when it changes."""

    rest: bytes
    """A batch without its leaves."""
    pieces: tuple[Piece, ...] = ()
    places: tuple[tuple[int, int, Kind | None], ...] = ()
    """For each leaf: the number of its piece, its first byte there, and what it is.  None: it is
    the piece."""


class Part(NamedTuple):
    """The leaves of a batch that lie in one place."""

    place: int
    """See places.py."""
    generation: int
    """Which ring of the worker's for this place this is, or was to be."""
    nbytes: int
    """How many bytes of a slot the leaves take."""
    seq: int = 0
    """The frame that has the leaves.  0: none."""


class Parcel(NamedTuple):
    """What goes through the queue."""

    inlet: str
    """The name of the main process's end (inlet.py)."""
    worker: int
    parts: tuple[Part, ...]
    layout: Layout | None
    """None: that of the worker's parcel before."""
    leaves: Sequence[Leaf] | Pickled | None = None
    """The leaves themselves, if there was no slot that is large enough.  None: they are in
    frames."""

    @property
    def is_simple(self) -> bool:
        """Whether any pickler will do.  The leaves are pickled already."""
        return True

    def pin_memory(self, _device: object = None) -> Any:
        """The batch, in pinned memory.  torch's thread for pinned memory calls this, as it does of
        any batch that has such a method."""
        return inlets[self.inlet].open(self, pinned=True)


class _Packer(pickle.Pickler):
    dispatch_table = ForkingPickler(io.BytesIO()).dispatch_table
    """A view of multiprocessing's reducers, which a ForkingPickler makes anew for each batch."""

    def __init__(self, file: io.BytesIO, is_leaf: Callable[[Any], bool]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.leaves: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._is_leaf = is_leaf

    def persistent_id(self, obj: Any) -> int | None:
        if not self._is_leaf(obj):
            return None
        number = self._numbers.setdefault(id(obj), len(self.leaves))
        if number == len(self.leaves):
            self.leaves.append(obj)
        return number


class _Unpacker(pickle.Unpickler):
    def __init__(self, rest: bytes, leaves: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(rest))
        self._leaves = leaves

    def persistent_load(self, pid: int) -> Any:
        return self._leaves[pid]


def take_apart(batch: Any, is_leaf: Callable[[Any], bool]) -> tuple[bytes, list[Any]]:
    """The batch without its leaves, and these."""
    file = io.BytesIO()
    packer = _Packer(file, is_leaf)
    packer.dump(batch)
    return file.getvalue(), packer.leaves


def put_together(rest: bytes, leaves: Sequence[Any]) -> Any:
    """Undoes take_apart."""
    return _Unpacker(rest, leaves).load()


def is_laid(obj: Any) -> bool:
    """Whether it is a tensor that a slot may have."""
    return type(obj) is torch.Tensor and can_be_laid(obj)


def is_laid_with_arrays(obj: Any) -> bool:
    """The same, or an array of NumPy."""
    return is_laid(obj) or (type(obj) is np.ndarray and _is_plain(obj))


def can_be_laid(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and (tensor.is_cpu or tensor.is_cuda)
        and tensor.dtype in _DTYPES
        and not tensor.is_nested
        and not tensor.requires_grad
    )


def _is_plain(array: np.ndarray[Any, Any]) -> bool:
    return array.flags.c_contiguous and not array.dtype.hasobject


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie without gaps and overlaps, in any order of its dimensions."""
    order = sorted(range(tensor.dim()), key=lambda k: tensor.stride()[k], reverse=True)
    return tensor.permute(order).is_contiguous()


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def over(memory: torch.Tensor, begin: int, kind: Kind) -> Leaf:
    """The leaf that lies at a byte of `memory`.  For autograd it is no view of another tensor.
    Raises ValueError if that byte cannot be the first of a tensor of its dtype."""
    if not isinstance(kind.dtype, torch.dtype):
        array: np.ndarray[Any, Any] = np.ndarray(kind.shape, kind.dtype, memory.numpy().data, begin)
        return array
    tensor: torch.Tensor = torch.empty(0, dtype=kind.dtype, device=memory.device)
    offset, rest = divmod(int(memory.storage_offset()) + begin, kind.dtype.itemsize)
    if rest:
        raise ValueError(f"a tensor of {kind.dtype} cannot begin at byte {begin}")
    tensor.set_(memory.untyped_storage(), offset, kind.shape, kind.strides)
    return tensor
