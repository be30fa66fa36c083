"""One slot, as its producer writes it and as a consumer reads it.

A slot is yours from claim to publish, or from acquire to release.  After that every access to its
frame raises an error, so copy what you need.  Slot objects and the arrays over them are used again
for later frames, but only when nobody has them any more.  A slot that is dropped before its end is
given back, and a ResourceWarning says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from gpuring import native
from gpuring.arrays.copying import copy_into, copy_out
from gpuring.arrays.interchange import Exported, View
from gpuring.arrays.streams import handle
from gpuring.errors import FrameTorn, RingClosed, RingError
from gpuring.native import slots
from gpuring.registry import diagnosis
from gpuring.ring.not_copyable import Unique
from gpuring.ring.origin import Origin
from gpuring.slot_layout import ARRAY, Field

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from gpuring.memory import Memory
    from gpuring.native import Device, Peer

_MAX_VIEWS = 64
"""How many arrays of smaller frames a slot remembers."""


class Slot(Exported, Unique):
    """What both kinds of slot have besides the verbs of _slots.Slot.  Users do not make it."""

    _writable: ClassVar[bool]
    """Whether its arrays may be written."""

    if TYPE_CHECKING:  # of _slots.Slot, and of the kinds below
        index: int
        array: Any
        _cut: bool
        _open: bool
        _seen: bool
        _seq: int
        _shape: tuple[int, ...] | None
        _stream: int
        _peer: Peer
        _device: Device | None
        _fields: dict[str, Field]
        _memory: Memory
        _owner: Any
        _ring: str
        _views: dict[Any, Any]
        _bind: Callable[..., None]
        _import_on: Callable[[int], None]

    def _prepare(
        self,
        index: int,
        ring: str,
        peer: Peer,
        memory: Memory,
        fields: Sequence[Field],
        meta: Any,
    ) -> Self:
        """Makes the views and binds the slot to its peer.  It is called once for each object."""
        self._ring = ring
        self._memory = memory
        self._fields = {field.name: field for field in fields}
        self._views = {
            field.name: memory.array(index, field, field.shape, writable=self._writable)
            for field in fields
        }
        self._bind(index, peer, self._views.get(ARRAY), meta)
        return self

    def _array_over(self, field: Field, shape: tuple[int, ...]) -> Any:
        """An array over a field, or over its beginning, as this kind of slot may be used."""
        return self._memory.array(self.index, field, shape, writable=self._writable)

    def _succeed(self, before: Self) -> None:
        """Called when this object takes the place of another one, which somebody still has."""

    def _check_open(self) -> None:
        self._seen = True
        if self._open:
            return
        what = f"ring {self._ring!r}: slot {self.index} (frame {self._seq})"
        if self._cut:
            role = "consumer" if isinstance(self, ReadSlot) else "producer"
            raise RingClosed(f"{what} was given back when this {role} was closed")
        raise RingError(
            f"{what} is no longer yours; "
            "a slot is valid from claim to publish and from acquire to release"
        )

    def _array(self) -> Any:
        """`array` of a slot that has several fields or a smaller frame, or that is over."""
        self._check_open()
        shape = self._shape
        if shape is None:
            names = ", ".join(repr(name) for name in self._fields)
            raise TypeError(
                f"ring {self._ring!r} has the fields {names}: use slot[name], not slot.array"
            )
        view = self._views.get(shape)
        if view is None:
            if len(self._views) > _MAX_VIEWS:
                self._views = {name: self._views[name] for name in self._fields}
            field = self._fields[ARRAY]
            view = self._views[shape] = self._array_over(field, field.smaller(shape))
        return view

    def _has_no_meta(self) -> TypeError:
        return TypeError(
            f"ring {self._ring!r} has no metadata: whoever creates a ring says with meta= what its "
            'frames carry, such as meta=[("pts", "i8")]'
        )

    def __getitem__(self, name: str) -> Any:
        """The array over the field `name` of the slot, as `array` is for a slot with one field.

        Raises KeyError if there is no such field, RingError if the slot is no longer yours.
        """
        self._check_open()
        if name == ARRAY and self._shape is not None:
            return self.array
        try:
            return self._views[name]
        except (KeyError, TypeError):  # a list cannot be a key
            raise self._has_no_field(name) from None

    # ---- interchange with other libraries ------------------------------------------------------

    def field(self, name: str) -> SlotField:
        """The field `name` of the slot, for other libraries: `torch.from_dlpack(slot.field("y"))`.

        `slot["y"]` does not do for this on a GPU.  It is a plain array, so nobody learns of the
        importer's stream.  Raises KeyError if there is no such field.
        """
        return SlotField(self, self._field_name(name))

    def _field_name(self, name: str | None) -> str:
        """`name`, or that of the only field.  Raises TypeError, KeyError."""
        if name is None:
            if ARRAY not in self._fields:
                names = ", ".join(repr(each) for each in self._fields)
                raise TypeError(f"ring {self._ring!r} has the fields {names}: say which")
            return ARRAY
        if not isinstance(name, str) or name not in self._fields:
            raise self._has_no_field(name)
        return name

    def _has_no_field(self, name: str) -> KeyError:
        names = ", ".join(map(repr, self._fields))
        return KeyError(f"ring {self._ring!r} has no field {name!r}; its fields: {names}")

    def _exported(self) -> View:
        return self._exported_as(ARRAY, self.array)

    def _exported_as(self, name: str, array: Any) -> View:
        stream = None if self._device is None else self._stream
        read_only = self._memory.read_only and not self._writable
        return View(self, self._fields[name], array, read_only, stream, self._import_on)

    def use_on(self, stream: Any) -> Self:
        """Says that the slot will be used on another stream, too.  Returns the slot.

        That stream is made to wait for all work on the slot so far.  What it does until publish or
        release is ordered before the next use of the slot by others.  Importing through DLPack does
        this by itself.  Raises TypeError if the ring is in host memory or `stream` is no stream,
        RingError if the slot is no longer yours, DeviceError.
        """
        self._check_open()
        if self._device is None:
            raise TypeError(f"ring {self._ring!r} is in host memory: it takes no stream")
        self._import_on(handle(stream))
        return self

    def _copies_on(self, stream: Any) -> int | None:
        """The handle of the stream for a copy.  None in host memory."""
        if stream is None:
            return None if self._device is None else self._stream
        self.use_on(stream)
        return handle(stream)

    def _order(self, stream: int, others: Sequence[int]) -> None:
        """Orders `stream` behind all work so far on `others`.  Raises DeviceError if it cannot be
        used now, even if there are no others."""
        assert self._device is not None
        self._device.follow(stream, others)

    def _check_stream(self, stream: int) -> None:
        """Raises DeviceError if `stream` cannot be used now: captured, or of another GPU."""
        if self._device is not None:
            self._device.check_stream(stream)

    # ---- the end of its use --------------------------------------------------------------------

    def _end(self) -> None:
        """Abandons a claim, or releases a frame."""
        raise AssertionError("each kind of slot has its own")

    def _refused(self, result: int, verb: str) -> RingError:
        return diagnosis.refused(self._ring, self._peer, result, verb=verb, timeout=None)

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<{type(self).__name__} {self.index} of {self._ring!r}, frame {self._seq}, {state}>"


class SlotField(Exported):
    """One field of a slot, as other libraries see it.  `Slot.field` makes it."""

    def __init__(self, slot: Slot, name: str) -> None:
        self._slot, self._name = slot, name

    def _exported(self) -> View:
        slot = self._slot
        return slot._exported_as(self._name, slot[self._name])


class WriteSlot(slots.WriteSlot, Slot):
    """A claimed slot.  As a context manager it publishes the frame.  If the block raises, it
    abandons the claim."""

    _writable = True

    def copy_from(self, source: Any, *, field: str | None = None, stream: Any = None) -> None:
        """Copies an array of any library into the slot, in stream order.

        * `source`: an object that has DLPack or an array interface of NumPy or CUDA, of exactly the
          frame's shape and dtype.  If it is in GPU memory, the copy waits for the stream that its
          library works on, and you may drop it or use it again right away.  If it is in host
          memory, the copy is asynchronous only if that is pinned.  Then do not change it before it
          is copied.
        * `field`: the name of the field, if the slot has several.
        * `stream`: where to copy.  None is the slot's own stream.  See `use_on`.

        On a host ring the CPU copies.  Raises TypeError for what is no array or has another dtype,
        ValueError for another shape or a layout that is neither C-contiguous nor rows at a pitch,
        RingError if the slot is no longer yours, DeviceError.
        """
        self._check_open()
        name = self._field_name(field)
        target, on = self[name], self._copies_on(stream)
        copy_into(target, self._fields[name], source, ring=self._ring, stream=on, order=self._order)

    def _end(self) -> None:
        self.abandon()


class ReadSlot(slots.ReadSlot, Slot):
    """A frame that this consumer holds.  As a context manager it releases the frame."""

    _writable = False  # others read it, too

    def copy_to(self, out: Any, *, field: str | None = None, stream: Any = None) -> None:
        """Copies the frame into an array of any library, in stream order.

        * `out`: an object that has DLPack or an array interface of NumPy or CUDA, of exactly the
          frame's shape and dtype, in host memory or on any GPU.  A GPU needs no peer access to that
          of the ring for this.  The copy waits for the stream that its library works on.
        * `field`: the name of the field, if the slot has several.
        * `stream`: where to copy.  None is the slot's own stream.  See `use_on`.

        On a GPU ring the call returns before the copy is done, except if `out` is in host memory
        that is not pinned.  `out` is complete when the stream has come past the copy.  If `out` is
        on another GPU than the slot, CuPy's current stream of that GPU waits for the copy as well.
        You may release the slot right away, because the release comes after the copy.  On a host
        ring the call waits for the copy, and takes no stream.

        Raises TypeError for what is no array or has another dtype, ValueError for another shape, a
        read-only array, or a layout that is neither C-contiguous nor rows at a pitch, RingError if
        the slot is no longer yours, DeviceError.
        """
        self._check_open()
        name = self._field_name(field)
        frame, on = self[name], self._copies_on(stream)
        copy_out(frame, self._fields[name], out, ring=self._ring, stream=on, order=self._order)

    @property
    def time_ns(self) -> int:
        """When the frame was published, in nanoseconds of CLOCK_MONOTONIC, as
        `time.monotonic_ns()`."""
        self._check_open()
        return self._peer.time_ns(self.index)

    @property
    def age(self) -> float:
        """Seconds since the frame was published."""
        return (native.now_ns() - self.time_ns) / 1e9

    @property
    def origin(self) -> Origin | None:
        """Where the frame comes from, if a bridge has brought it from a ring of another host.  None
        for all other frames.

        Raises RingError if the slot is no longer yours.
        """
        self._check_open()
        found = self._peer.origin(self.index)
        if found is None:
            return None
        near = self._owner._ring.spec.origin or {"host": "", "ring": ""}
        return Origin(found[0], near["host"], near["ring"], found[1])

    def check(self) -> None:
        """Raises FrameTorn if the frame's producer died before its GPU work on it was finished.

        The answer is final once your own work on the frame is complete, so synchronise your stream
        first.  Before that the frame may still turn out torn.
        """
        self._check_open()
        if self._peer.is_torn(self.index):
            raise self._torn()

    def _end(self) -> None:
        self.release()

    def _torn(self) -> FrameTorn:
        return self._torn_of((self._seq,))

    def _torn_of(self, seqs: Sequence[int]) -> FrameTorn:
        return diagnosis.torn(self._ring, seqs)


class WriteBatch(Unique, tuple[WriteSlot, ...]):
    """Slots claimed together, in order of sequences.  As a context manager it publishes them; if
    the block raises, it abandons them.  Slots that were ended one by one are left alone."""

    def publish(self) -> None:
        """Publishes the slots that are still open, in stream order.  Never blocks.

        If one cannot be published, those behind it are abandoned.  Raises as WriteSlot.publish.
        """
        slots.publish_all(self)

    def abandon(self) -> None:
        """Gives the slots that are still open back without frames.  Readers pass over their
        sequences."""
        slots.abandon_all(self)

    __enter__ = slots.enter_batch
    __exit__ = slots.exit_write_batch


class ReadBatch(Unique, tuple[ReadSlot, ...]):
    """Frames acquired together, in order of sequences.  As a context manager it releases them;
    frames that were released one by one are left alone."""

    def release(self) -> None:
        """Releases the frames that are still open, in stream order.  Never blocks.

        Raises FrameTorn, which names all that are torn, when all are released.  Other errors are
        those of ReadSlot.release.  After one of them the next acquire, or close, raises the
        FrameTorn.
        """
        seqs = slots.release_all(self)
        if seqs:
            raise self[0]._torn_of(seqs)

    __enter__ = slots.enter_batch
    __exit__ = slots.exit_read_batch
