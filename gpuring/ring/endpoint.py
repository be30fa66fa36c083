"""What producers and consumers have in common: an entry in the peer table, slots, and a close."""

from __future__ import annotations

import contextlib
import weakref
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from gpuring import native
from gpuring.arrays import streams
from gpuring.errors import RingClosed, RingTimeout, raise_first
from gpuring.native.signals import Dropped
from gpuring.registry import diagnosis
from gpuring.ring import caller, debug
from gpuring.ring.debug import Watcher
from gpuring.ring.not_copyable import Unique
from gpuring.ring.slot import Slot

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from weakref import ref

    from typing_extensions import Self

    from gpuring.memory import Memory
    from gpuring.native import Device, Header, Notifier, Peer
    from gpuring.registry.stats import RingStats
    from gpuring.slot_layout import Spec

Gate = Literal["stream", "host"]


class JoinedRing(Protocol):
    """What an endpoint needs of the Ring that it has joined, and what users see as its `ring`.

    This is a Protocol because Ring makes endpoints, so its module imports this one.
    """

    _header: Header
    _memory: Memory
    _device: Device | None
    _endpoints: dict[int, ref[Endpoint]]
    _whole: caller.Whole | None

    @property
    def name(self) -> str: ...
    @property
    def slots(self) -> int: ...
    @property
    def spec(self) -> Spec: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def fields(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]: ...
    @property
    def memory(self) -> str: ...
    @property
    def sync(self) -> str: ...
    @property
    def gate(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def producer(self, *args: Any, **options: Any) -> Any: ...
    def consumer(self, *args: Any, **options: Any) -> Any: ...
    def watch(self) -> None: ...
    def stats(self) -> RingStats: ...
    def close(self) -> None: ...
    def _forget(self, endpoint: Endpoint) -> None: ...
    def _successor(self) -> JoinedRing | None: ...
    def _join(
        self,
        subscription: str | None,
        lossless: bool,
        start: Literal["next", "oldest"] | int,
        gate: Gate | None,
        redeliver: bool,
        spin: float | None,
    ) -> Peer: ...


class Endpoint(Unique, Dropped):
    """One peer of a ring in this process: what it has besides the verbs of _verbs.Verbs.  Users do
    not make it."""

    _peer: Peer
    _device: Device | None
    _slots: list[Any]
    _spares: dict[int, Any]
    _batch: type[tuple[Any, ...]]
    _slot_type: ClassVar[type[Slot]]
    _role: ClassVar[str]
    _takes: ClassVar[tuple[str, ...]]
    """The verbs that hand out slots."""
    _watch: Watcher | None
    """None unless the process is in debug mode."""

    if TYPE_CHECKING:  # of _verbs.Verbs
        _replaced: bool
        _polled: bool

        def _lost(self) -> list[int]: ...
        def _give_back_if_lost(self, index: int) -> bool: ...
        def _recover(self) -> None: ...
        def _renew(self, index: int) -> Any: ...

    def __init__(self, ring: JoinedRing, peer: Peer) -> None:
        self._notifier: Notifier | None = None  # made when somebody waits in an event loop
        self._awaited: AbstractEventLoop | None = None  # whose task waits
        self._rested_s = 0.0  # when the event loop last had a chance to run others
        self._first_in = 0  # the turn of select in which this one came first
        self._made_at = caller.line() if debug.ON else ""
        """Where in the program it was made, in debug mode."""
        self._settle_in(ring, peer)

    def _settle_in(self, ring: JoinedRing, peer: Peer) -> None:
        """Makes `peer` of `ring` this endpoint's own, and prepares its slots."""
        self._ring = ring
        self._peer = peer
        self._device = peer.device
        self._closed = False  # after these, which _dropped needs where a Ctrl-C has come
        self._watch = debug.Watcher(ring.spec, self._put_back) if debug.ON else None
        kind = self._slot_type if self._watch is None else self._watch.slot_type(self._slot_type)
        metas = self._metas()
        self._kind = kind
        self._slots = [self._prepared(index, metas[index]) for index in range(ring.slots)]
        self._spares = {}
        if self._watch is not None:
            self._have_watched(self._watch)
        ring._endpoints[id(self)] = weakref.ref(self)

    def _prepared(self, index: int, meta: Any) -> Any:
        ring = self._ring
        slot: Any = self._kind()
        slot._prepare(index, ring.name, self._peer, ring._memory, ring.spec.fields, meta)
        if self._watch is not None:
            self._watch.begin(slot)
        return slot

    def _make_slot(self, index: int) -> Any:
        """Another object for a slot.  Somebody still has its object, though the frame is over."""
        return self._prepared(index, self._metas()[index])

    def _have_watched(self, watch: Watcher) -> None:
        """In debug mode: gives this object verbs of its own, which call those of its class."""
        self._batch = watch.batch_type(type(self)._batch)
        self._replaced = True
        for name in self._takes:
            setattr(self, name, MethodType(watch.verb(getattr(type(self), name)), self))

    def _metas(self) -> list[Any]:
        """A view of each slot's metadata.  The views keep the header mapped."""
        ring = self._ring
        if ring.spec.meta is None:
            return [None] * ring.slots
        header = ring._header
        table = np.ndarray(ring.slots, ring.spec.meta, memoryview(header), 0, (header.meta_stride,))
        table.flags.writeable = self._role == "producer"
        return [table[index] for index in range(ring.slots)]

    @property
    def ring(self) -> JoinedRing:
        """The ring that it has joined.  With `reattach=True` it is another one after a restart."""
        return self._ring

    @property
    def peer(self) -> int:
        """This peer's number in the ring's peer table, as `gpuring inspect` shows it."""
        return self._peer.number

    @property
    def closed(self) -> bool:
        """Whether it was closed, by its own `close` or by that of the Ring that it came from."""
        return self._closed

    def _handle(self, stream: Any) -> int:
        """The raw handle of a stream that the user gave."""
        if self._device is None:
            raise TypeError(f"ring {self._ring.name!r} is in host memory: it takes no stream")
        return streams.handle(stream)

    def _refused(self, result: int, verb: str, timeout: float | None) -> Exception:
        if self._answers_nothing():
            return RingClosed(f"ring {self._ring.name!r}: this {self._role} was closed")
        if self._polled and result == native.BLOCKED:
            self._notify().arm(self._peer)
        return diagnosis.refused(self._ring.name, self._peer, result, verb=verb, timeout=timeout)

    def fileno(self) -> int:
        """A descriptor for selectors, poll and event loops.

        It is readable when `acquire(0)` of a consumer, or `claim(0)` of a producer, may have an
        answer.  An answer is a slot, or an error other than RingTimeout.  (A FrameTorn of frames
        that were released comes with the next answer.)

        Wait until it is readable, call `acquire(timeout=0)`, and wait again after RingTimeout.  It
        stays readable until a call times out.  So a program may take one frame each time or all
        of them, and misses none.  Never read or close it.  After EndOfStream or PeerLost it stays
        readable: take it out of the loop.  It is the same number for the whole life of this object,
        also after a restart.  With gate="host" pass a short timeout instead of 0, because the GPU
        may not be done.

        The first call starts a native thread, one for the process.  Raises OSError if there can be
        no thread or no descriptor, RingError in a forked child.
        """
        if self._ring._header.forked:
            raise diagnosis.unusable(self._ring.name, native.FORKED)
        notifier = self._notify()
        if not self._polled and not self._closed:
            self._polled = True
            notifier.arm(self._peer)
        return notifier.fileno()

    def _notify(self) -> Notifier:
        if self._notifier is None:
            if self._closed:
                raise RingClosed(f"ring {self._ring.name!r}: this {self._role} was closed")
            self._notifier = native.Notifier()
        return self._notifier

    def _answers_nothing(self) -> bool:
        """Whether it was closed, or another thread is about to close it."""
        return self._closed or self._peer.stopped

    def _answers_at_once(self) -> bool:
        """Whether its verb has an answer that the core does not know of."""
        return self._answers_nothing()

    def _put_back(self, index: int) -> None:
        """Undoes a claim or a hold that the user has never seen."""
        self._peer.put_back(index)

    def _give_back_lost(self) -> None:
        """Gives back the slots that are open and that nobody has.  A Ctrl-C came before their
        caller had them, or they were dropped."""
        lost = sorted(((self._slots[index]._seq, index) for index in self._lost()), reverse=True)
        for seq, index in lost:  # the last first: a consumer goes back step by step
            if not self._give_back_if_lost(index):
                continue
            caller.warn(
                f"ring {self._ring.name!r}: frame {seq} was "
                f"{'claimed' if self._role == 'producer' else 'acquired'}, and nobody has its slot "
                "any more: it is given back. Keep the slot until you end it",
                ResourceWarning,
            )

    def _give_back(self, index: int) -> None:
        """Ends a slot that nobody has.  If nobody ever had it, this undoes the claim or acquire."""
        raise AssertionError("each role has its own")

    def _finish(self) -> list[Exception]:
        """Ends every claim or hold that is left, also one whose end was interrupted.  Returns the
        errors."""
        errors: list[Exception] = []
        with contextlib.suppress(Exception):  # it is tried again, and told, below
            self._give_back_lost()
        for index, seq in self._peer.holding():
            slot = self._slots[index]
            try:
                if slot._seq == seq:  # the user had it: its streams may be at work
                    slot._open = slot._cut = True
                    try:
                        slot._end()
                    finally:
                        slot._cut = not slot._open
                else:
                    self._put_back(index)
            except Exception as error:  # the others go back all the same
                errors.append(error)
        return errors

    def _dropped(self) -> None:
        """Nobody has it any more.  Its slots were dropped, too, because an open slot keeps it.

        Does not wait for the membership lock.  May be called again after a Ctrl-C."""
        if not hasattr(self, "_closed") or self._ring._header.forked:
            return
        try:
            if not self._closed:
                what = f"ring {self._ring.name!r}: a {self._role}"
                caller.warn_not_closed(
                    what, self._made_at, "it leaves the ring", self, self._ring._whole
                )
        finally:  # warnings may be errors
            self._peer.drop()
            with contextlib.suppress(Exception):
                self.close()
            self._ring._forget(self)

    def close(self) -> None:
        """Leaves the ring in order: it abandons the claims and releases the frames that are open,
        waits until the GPU has done its work on the slots, and gives up its entry.

        A claim or acquire that waits in another thread ends with RingClosed.  May be called twice,
        and again after a Ctrl-C.

        Raises RingTimeout, and stays open, if the membership lock cannot be had for 5 s (a stopped
        process has it), or if a verb of another thread does not end within 5 s.  Raises DeviceError
        if the GPU reports an error.  It has left the ring then if everything that was open could be
        ended; otherwise it stays open.  Of several errors it raises one, whose notes name the
        others.
        """
        if self._closed:
            return
        errors: list[Exception] = []
        if not self._ring._header.forked and not self._peer.left:
            try:
                errors = self._leave_ring()
            except BaseException:
                self._peer.resume()
                raise
        self._slots = []  # their arrays hold the memory
        self._closed = True
        self._ring._forget(self)
        if errors:
            raise_first(errors)

    def _leave_ring(self) -> list[Exception]:
        """Leaves the ring, and returns the errors on the way.  Raises if it has not left."""
        stopped = self._peer.stop()
        if self._notifier is not None:
            self._notifier.set()  # who waits for us finds us closed
        if not stopped:
            raise RingTimeout(
                f"ring {self._ring.name!r}: this {self._role} is still in a verb of another thread"
            )
        errors = self._finish()
        if errors and self._peer.holding():
            raise_first(errors)
        try:
            result = self._peer.leave()
            if result not in (0, native.REAPED):  # reaped: there is nothing to leave
                raise diagnosis.unusable(self._ring.name, result)
        except BaseException as error:  # why it is still open comes first
            raise_first([error, *errors])
        return errors

    def _described(self) -> str:
        return ""

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"peer {self._peer.number}{self._described()}"
        return f"<{type(self).__name__} of {self._ring.name!r}: {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
