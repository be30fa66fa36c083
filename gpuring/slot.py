"""One slot as its producer writes it and as a consumer reads it.

Slot objects and the arrays over them are made once per slot and peer and used again each lap.  So a
slot is yours from claim to publish, or from acquire to release, and not after: then every access to
its frame raises.  Keep what you need by copying it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuring import _core, diagnosis
from gpuring.errors import FrameTorn, RingError
from gpuring.spec import ARRAY, Field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from gpuring._core import Peer
    from gpuring.memory import Memory
    from gpuring.sync import Sync

_MAX_VIEWS = 64  # arrays of smaller frames that a slot remembers


class Slot:
    """What both kinds of slot have.  Not made by users."""

    __slots__ = (
        "_fields",
        "_memory",
        "_meta",
        "_open",
        "_peer",
        "_ring",
        "_seq",
        "_shape",
        "_stream",
        "_streams",
        "_sync",
        "_views",
        "index",
    )

    index: int
    """Which slot of the ring this is, 0 … slots - 1."""

    def __init__(
        self,
        index: int,
        ring: str,
        peer: Peer,
        sync: Sync | None,
        memory: Memory,
        fields: Sequence[Field],
        meta: Any,
    ) -> None:
        self.index = index
        self._ring = ring
        self._peer = peer
        self._sync = sync
        self._memory = memory
        self._fields = {field.name: field for field in fields}
        self._meta = meta
        self._views: dict[Any, Any] = {
            name: self._view(field, field.shape) for name, field in self._fields.items()
        }
        self._open = False
        self._seq = 0
        self._shape: tuple[int, ...] | None = None
        self._stream = 0
        self._streams: tuple[int, ...] = ()

    def _view(self, field: Field, shape: tuple[int, ...]) -> Any:
        return self._memory.array(self.index, field, shape)

    def _begin(self, seq: int, shape: tuple[int, ...] | None, stream: int) -> None:
        self._seq = seq
        self._shape = shape
        if stream != self._stream or len(self._streams) != 1:
            self._stream = stream
            self._streams = (stream,)
        self._open = True

    def _check_open(self) -> None:
        if not self._open:
            raise RingError(
                f"ring {self._ring!r}: slot {self.index} (frame {self._seq}) is no longer yours; "
                "a slot is valid from claim to publish and from acquire to release"
            )

    @property
    def seq(self) -> int:
        """The frame's sequence.  A ring of N slots begins with N."""
        return self._seq

    @property
    def array(self) -> Any:
        """The frame as an array over the slot: `cupy.ndarray` on a GPU, `numpy.ndarray` on the
        host.

        Only for rings with one field (`shape=`, `dtype=`); see `slot[name]` for several.  On a GPU
        the stream of claim or acquire already waits for whoever used the slot before; work on
        another stream must be ordered by you.
        """
        if not self._open:
            self._check_open()
        shape = self._shape
        if shape is None:
            try:
                return self._views[ARRAY]
            except KeyError:
                names = ", ".join(repr(name) for name in self._fields)
                raise TypeError(
                    f"ring {self._ring!r} has the fields {names}: use slot[name], not slot.array"
                ) from None
        view = self._views.get(shape)
        if view is None:
            if len(self._views) > _MAX_VIEWS:
                self._views = {name: self._views[name] for name in self._fields}
            field = self._fields[ARRAY]
            view = self._views[shape] = self._view(field, field.smaller(shape))
        return view

    def __getitem__(self, name: str) -> Any:
        """The array over one field of the slot."""
        self._check_open()
        if name == ARRAY and self._shape is not None:
            return self.array
        return self._views[name]

    @property
    def meta(self) -> Any:
        """The frame's metadata: a `numpy.void` over the header, `slot.meta["pts"]`.

        A view: what is written here is in the ring at once.  None if the ring has no metadata.
        """
        if not self._open:
            self._check_open()
        return self._meta

    # ---- interchange with other libraries ------------------------------------------------------

    def _import_on(self, stream: int) -> None:
        """Orders a foreign stream behind this slot's, and remembers that it uses the slot."""
        if stream not in self._streams:
            assert self._sync is not None
            self._sync.follow(stream, (self._stream,))
            self._streams += (stream,)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.array.__dlpack_device__()
        return device

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """DLPack export without a copy, so `torch.from_dlpack(slot)`.

        On a GPU the importer's stream is ordered behind the slot's, and publish or release waits
        for it.  The tensor is valid as long as the slot is yours.
        """
        if self._sync is None:
            return self.array.__dlpack__(stream=stream, **options)
        if stream != -1:  # -1: the importer does not want to be ordered
            self._import_on({None: 1, 0: 1}.get(stream, stream or 1))
        return self.array.__dlpack__(stream=-1, **options)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._sync is None:
            raise AttributeError("__cuda_array_interface__: this ring is in host memory")
        return dict(self.array.__cuda_array_interface__, stream=self._stream or 1)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self._sync is not None:
            raise AttributeError("__array_interface__: this ring is on a GPU")
        interface: dict[str, Any] = self.array.__array_interface__
        return interface

    # ---- the end of its use --------------------------------------------------------------------

    def _end(self) -> None:
        """Ends its use without a result: abandons or releases."""
        raise AssertionError("each kind of slot has its own")

    def _used_streams(self) -> tuple[int, ...]:
        """Every stream whose work on the slot must be finished: the one it was given to, those that
        imported it, and the current one, on which work may have been done since."""
        if self._sync is None:
            return ()
        current = self._sync.current_stream()
        if current in self._streams:
            return self._streams
        return (*self._streams, current)

    def _refused(self, result: int, verb: str) -> RingError:
        return diagnosis.refused(self._ring, self._peer, result, verb=verb, timeout=None)

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<{type(self).__name__} {self.index} of {self._ring!r}, frame {self._seq}, {state}>"


class WriteSlot(Slot):
    """A claimed slot.  As a context manager it publishes; if the block raises, it abandons."""

    __slots__ = ()

    def publish(self) -> None:
        """Hands the frame to the readers, in stream order: their streams wait for yours.

        Never blocks.  Raises PeerLost if this peer was taken for dead, DeviceError if the work
        could not be recorded (the frame is abandoned then), RingError if the slot is not yours any
        more.
        """
        if not self._open:
            self._check_open()
        try:
            result = self._peer.publish(
                self.index, self._seq, self._sync, self._used_streams(), self._shape
            )
        finally:  # after an interrupt on the way there, close() finds the claim and ends it
            self._open = False
        if result:
            raise self._refused(result, "publish")

    def _end(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Gives the slot back without a frame: readers pass over its sequence."""
        self._check_open()
        try:
            result = self._peer.abandon(self.index, self._seq, self._sync, self._used_streams())
        finally:
            self._open = False
        if result:
            raise self._refused(result, "abandon")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._open:
            return
        if kind is None:
            self.publish()
        else:
            self.abandon()


class ReadSlot(Slot):
    """A frame that this consumer holds.  As a context manager it releases."""

    __slots__ = ("_lost", "_redelivered", "_restarted")

    def _view(self, field: Field, shape: tuple[int, ...]) -> Any:
        view = super()._view(field, shape)
        if self._sync is None:
            view.flags.writeable = False  # others read the same frame; a GPU cannot forbid it
        return view

    def _begin_read(self, stream: int) -> None:
        peer = self._peer
        self._lost = peer.lost
        self._redelivered = peer.redelivered
        self._restarted = False
        self._begin(peer.seq, peer.shape(self.index), stream)

    @property
    def lost(self) -> int:
        """Sequences that this consumer was made to skip just before this frame; 0 if lossless.

        Void sequences (abandoned claims) among them count too: nobody can tell afterwards."""
        return self._lost

    @property
    def redelivered(self) -> bool:
        """Whether another member of the subscription had this frame and died with it."""
        return self._redelivered

    @property
    def restarted(self) -> bool:
        """Whether the stream began again with this frame (`consumer(reattach=True)`): sequences may
        have started over, and frames between may be missing."""
        return self._restarted

    @property
    def time_ns(self) -> int:
        """When the frame was published: CLOCK_MONOTONIC (`time.monotonic_ns()`) of this host."""
        self._check_open()
        return self._peer.time_ns(self.index)

    @property
    def age(self) -> float:
        """Seconds since the frame was published."""
        return (_core.now_ns() - self.time_ns) / 1e9

    def check(self) -> None:
        """Raises FrameTorn if the frame's producer died before its GPU work on it was finished.

        The answer is final once your own work on the frame is complete (synchronise your stream
        first); before that it may still turn out torn.
        """
        self._check_open()
        if self._peer.header.torn(self.index) >= self._seq:
            raise self._torn()

    def _end(self) -> None:
        self.release()

    def release(self) -> None:
        """Gives the slot back, in stream order: the next writer's stream waits for your reads.

        Never blocks.  Raises FrameTorn (the slot is given back) if the frame is known to be torn,
        PeerLost if this peer was taken for dead, RingError if the slot is not yours any more.
        """
        if not self._open:
            self._check_open()
        try:
            result = self._peer.release(self.index, self._seq, self._sync, self._used_streams())
        finally:  # after an interrupt on the way there, close() finds the hold and ends it
            self._open = False
        if result == _core.TORN:
            raise self._torn()
        if result:
            raise self._refused(result, "release")

    def _torn(self) -> FrameTorn:
        return FrameTorn(
            f"ring {self._ring!r}: frame {self._seq} is torn: its producer died before the GPU had "
            "written it. Discard what was computed from it",
            (self._seq,),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self.release()
