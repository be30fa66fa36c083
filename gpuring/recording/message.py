"""What a message of a recording holds: a frame's copy with what was known of it, in one buffer.

A message is a head of 128 bytes, the metadata, and the arrays, each at an offset that the schema
names.  `docs/recording.md` describes it for others.  Nothing here touches a file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuring import native
from gpuring.arguments import between_one_and
from gpuring.ring import inner
from gpuring.ring.origin import Origin
from gpuring.slot_layout import ARRAY, Spec

if TYPE_CHECKING:
    from gpuring.ring.endpoint import JoinedRing
    from gpuring.ring.read_slot import ReadSlot

Array = npt.NDArray[Any]

ENCODING = "gpuring"
"""The encoding of the messages, and of the schemas."""

HEAD = np.dtype(
    [
        ("seq", "<u8"),
        ("time_ns", "<u8"),
        ("unix_ns", "<u8"),
        ("lost", "<u8"),
        ("origin_seq", "<u8"),
        ("origin_time_ns", "<u8"),
        ("flags", "<u4"),
        ("ndim", "<u4"),
        ("shape", "<u8", native.MAX_NDIM),
        ("reserved", "<u8"),
    ]
)
REDELIVERED, RESTARTED, HAS_ORIGIN = 1, 2, 4
"""Bits of `flags`."""

_ALIGNMENT = 64
"""The alignment of the arrays in a message."""

_UNIX_NS = time.time_ns() - native.now_ns()
"""The time of 1970 on the clock of rings.  It is measured once, so that the times of one process
have the distances that they have in the ring, also if somebody sets the clock."""


@dataclass(frozen=True)
class RecordedRing:
    """A ring whose frames were recorded."""

    name: str
    """The name that it had."""
    epoch: str
    """128 random bits in hexadecimal.  A ring that took the name of another one has others."""
    slots: int
    """How many slots it had."""
    memory: str
    """Where its slots were, as `Ring.memory`."""
    spec: Spec = field(hash=False)
    """What a slot held: its fields with their shapes and dtypes, and the metadata's dtype."""
    offsets: tuple[int, ...] = field(init=False)
    """Where the arrays of the fields begin in a message, in bytes."""

    def __post_init__(self) -> None:
        offsets, end = [], HEAD.itemsize + self.spec.meta_nbytes
        for each in self.spec.fields:
            offsets.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
            end = offsets[-1] + each.nbytes
        object.__setattr__(self, "offsets", tuple(offsets))

    def __repr__(self) -> str:
        return f"<RecordedRing {self.name!r}: {self.slots} × {self.spec}, {self.memory}>"

    @classmethod
    def of(cls, ring: JoinedRing, names: Sequence[str] | None = None) -> RecordedRing:
        """names: those of the fields that are copied.  None: all of them."""
        fields = tuple(f for f in ring.spec.fields if names is None or f.name in names)
        spec = replace(ring.spec, fields=fields, canary_nbytes=0, about=None)
        return cls(ring.name, ring.stats().epoch, ring.slots, ring.memory, spec)

    @property
    def nbytes(self) -> int:
        """The size of the message of a whole frame."""
        return self.offsets[-1] + self.spec.fields[-1].nbytes

    # ---- as MCAP has it --------------------------------------------------------------------------

    @property
    def schema(self) -> bytes:
        """How to read a message, in JSON."""
        described = json.loads(self.spec.to_bytes())
        head = [
            [name, kind.base.str, *([kind.shape] if kind.shape else [])]
            for name, (kind, *_) in (HEAD.fields or {}).items()
        ]
        layout = {"head": head, "meta_offset": HEAD.itemsize, "offsets": self.offsets}
        return json.dumps(described | layout).encode()

    @property
    def metadata(self) -> dict[str, str]:
        """What MCAP has of the channel."""
        return {"epoch": self.epoch, "slots": str(self.slots), "memory": self.memory}

    @classmethod
    def from_mcap(cls, topic: str, metadata: dict[str, str], schema: bytes) -> RecordedRing:
        """The inverse of `schema` and `metadata`.  Raises ValueError for anything else."""
        try:
            slots = between_one_and(native.MAX_SLOTS, int(metadata["slots"]), "slots")
            spec = Spec.from_bytes(schema)
            made = cls(topic, metadata["epoch"], slots, metadata["memory"], spec)
            if json.loads(schema) != json.loads(made.schema):
                raise ValueError("another layout of messages")
        except KeyError as missing:
            raise ValueError(f"its channel {topic!r} lacks {missing}") from None
        except ValueError as error:
            raise ValueError(f"its channel {topic!r} cannot be read: {error}") from error
        return made


class Frame:
    """A frame of a recording.  What is called like something of a `ReadSlot` is the same.

    It is a copy, so it may be kept.  Its arrays are read-only.
    """

    def __init__(self, ring: RecordedRing, data: Any) -> None:
        self._ring = ring
        self._data = data
        self._head = np.frombuffer(data, HEAD, 1)[0]

    @property
    def ring(self) -> RecordedRing:
        """The ring from which it was recorded."""
        return self._ring

    @property
    def data(self) -> Any:
        """The message as it is in the file: an object with the buffer protocol."""
        return self._data

    @property
    def seq(self) -> int:
        """Its sequence in the ring."""
        return int(self._head["seq"])

    @property
    def time_ns(self) -> int:
        """When it was published, in nanoseconds of CLOCK_MONOTONIC of the host of the recorder."""
        return int(self._head["time_ns"])

    @property
    def unix_ns(self) -> int:
        """When it was published, in nanoseconds since 1970: the `log_time` of MCAP."""
        return int(self._head["unix_ns"])

    @property
    def lost(self) -> int:
        """How many frames the recorder has missed just before this one."""
        return int(self._head["lost"])

    @property
    def redelivered(self) -> bool:
        """Whether a recorder was killed, or ended by an error, when it had this frame.  The frame
        may be in the recording twice then, and the one that came first has this not set."""
        return bool(self._head["flags"] & REDELIVERED)

    @property
    def restarted(self) -> bool:
        """Whether the stream began again with this frame, because its producer or its ring was
        started again."""
        return bool(self._head["flags"] & RESTARTED)

    @property
    def origin(self) -> Origin | None:
        """Where the frame came from, if a bridge had brought it from another host."""
        if not self._head["flags"] & HAS_ORIGIN:
            return None
        near = self._ring.spec.origin or {"host": "", "ring": ""}
        seq, time_ns = int(self._head["origin_seq"]), int(self._head["origin_time_ns"])
        return Origin(seq, near["host"], near["ring"], time_ns)

    @property
    def smaller(self) -> tuple[int, ...] | None:
        """The shape of a frame that was smaller than its slot.  None: it had the slot's own."""
        return tuple(map(int, self._head["shape"][: self._head["ndim"]])) or None

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The arrays of all fields by their names."""
        return {
            each.name: np.ndarray(
                each.shape if self.smaller is None else each.smaller(self.smaller),
                each.dtype,
                self._data,
                offset,
            )
            for each, offset in zip(self._ring.spec.fields, self._ring.offsets, strict=True)
        }

    @property
    def array(self) -> Array:
        """The array of a ring with one field.  Raises TypeError if there are several."""
        if ARRAY not in self.arrays:
            names = ", ".join(map(repr, self.arrays))
            raise TypeError(f"ring {self._ring.name!r} has the fields {names}: use frame[name]")
        return self.arrays[ARRAY]

    def __getitem__(self, name: str) -> Array:
        """The array of the field `name`.  Raises KeyError if there is no such field."""
        if name not in self.arrays:
            names = ", ".join(map(repr, self.arrays))
            raise KeyError(f"ring {self._ring.name!r} has no field {name!r}; its fields: {names}")
        return self.arrays[name]

    @cached_property
    def meta(self) -> Any:
        """The metadata, a `numpy.void`.  None if the ring had none."""
        if self._ring.spec.meta is None:
            return None
        return np.frombuffer(self._data, self._ring.spec.meta, 1, HEAD.itemsize)[0]

    def checked(self) -> Frame:
        """Itself.  Raises ValueError or TypeError if its message cannot be that of a frame."""
        *_, last = self.arrays.values()
        if len(self._data) != self._ring.offsets[-1] + last.nbytes:
            raise ValueError("a message is longer than its frame")
        return self

    def __repr__(self) -> str:
        return f"<Frame {self.seq} of {self._ring.name!r}>"


def copier(ring: RecordedRing) -> Callable[[ReadSlot], Frame]:
    """A function that copies the frame of a slot to the host.  It is complete when that returns,
    and is overwritten by the next copy.

    What it returns raises FrameTorn if the frame's producer died before it was written.
    """
    buffer = bytearray(ring.nbytes)
    head = np.frombuffer(buffer, HEAD, 1)
    start, end = HEAD.itemsize, HEAD.itemsize + ring.spec.meta_nbytes
    has_origin = ring.spec.origin is not None

    def copy(slot: ReadSlot) -> Frame:
        origin = slot.origin if has_origin else None
        head["seq"], head["time_ns"], head["lost"] = slot.seq, slot.time_ns, slot.lost
        head["unix_ns"] = slot.time_ns + _UNIX_NS
        head["flags"] = (
            REDELIVERED * slot.redelivered
            | RESTARTED * slot.restarted
            | HAS_ORIGIN * (origin is not None)
        )
        if origin is not None:
            head["origin_seq"], head["origin_time_ns"] = origin.seq, origin.time_ns
        if start != end:
            buffer[start:end] = slot.meta.tobytes()
        head["ndim"], head["shape"], used = 0, 0, ring.nbytes
        for each, offset in zip(ring.spec.fields, ring.offsets, strict=True):
            array = inner.array(slot, each.name)
            if array.shape != each.shape:
                ndim = head["ndim"] = len(array.shape)
                head["shape"][0, :ndim] = array.shape
                used = offset + array.nbytes
            out: Array = np.ndarray(array.shape, array.dtype, buffer, offset)
            slot.copy_to(out, field=each.name)
        slot.check()
        return Frame(ring, memoryview(buffer)[:used])

    return copy
