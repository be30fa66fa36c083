"""The client's side: it sends requests, has several calls in flight, and takes the answer of
each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpuring import _core, diagnosis
from gpuring._calls import Attempt, Sender, Turn, asyncio, has_engines
from gpuring._core import seconds
from gpuring._slots import nobody_has, references
from gpuring.errors import PeerLost, RingClosed, RingFull
from gpuring.service.mailbox import Mailbox
from gpuring.service.pending import Answer, PendingCall, RequestSlot, RequestWriter
from gpuring.service.tasks import deadline_of, left_s
from gpuring.service.wire import Terms, remove_if_dead
from gpuring.unique import Unique

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpuring.ring import Ring

_ENGINE_POLL_S = 0.005


class Client(Sender, Unique):
    """A client of a service.  `connect` makes it.  Several threads may use it."""

    _ring: Ring
    _requests: RequestWriter
    _mailbox: Mailbox
    id: int
    """The number by which engines know this client, `call.client` there."""

    def __init__(self, ring: Ring, terms: Terms, calls: int, engine_s: float) -> None:
        self._terms = terms
        self._engine_s = engine_s
        requests = RequestWriter(ring, ring._join_producer())
        mailbox = Mailbox(ring, terms, calls, engine_s)
        super().__init__(ring, requests, mailbox, Turn(), mailbox.id, terms.kept, PendingCall)

    @property
    def name(self) -> str:
        """The name of the service that this client uses."""
        return self._ring.name

    @property
    def ring(self) -> Ring:
        """The ring that requests go through, shared by all clients and engines."""
        return self._ring

    @property
    def closed(self) -> bool:
        """Whether this client was closed."""
        return self._calls.closed

    @property
    def in_flight(self) -> int:
        """How many calls need room.  These are calls whose request is being written or was sent,
        calls whose answer was not released, and calls that were given up and whose answer may still
        come.  A call that nobody refers to any more, and whose answer nobody has, is given up by
        this look."""
        with Attempt(self._sending) as mine:
            if mine and not self.closed:
                self._settle()
        if self._calls.live and not self.closed:
            self._mailbox.pump(lambda: False, 0)
        return len(self._calls.live)

    @property
    def late(self) -> int:
        """How many answers were discarded.  They were for calls that had been given up, or were
        second answers to a call, which an engine's death may cause."""
        return self._mailbox.late

    def request(
        self,
        timeout: float | None = None,
        *,
        expires_s: float | None = None,
        stream: Any = None,
        shape: Sequence[int] | None = None,
    ) -> RequestSlot:
        """Returns a slot for a request.  As a context manager it sends the request at the end.

            with client.request() as slot:
                slot.array[...] = image
                call = slot.call
            with call.result() as answer: …

        It waits while the request ring is full, and while other threads use this client's room for
        calls.  While there is no engine, it waits for up to `engine_s` seconds.

        * `timeout`: in seconds.  None waits for ever, 0 does not wait.
        * `expires_s`: engines leave the call out if none has taken it after so many seconds.
          result() raises when an engine comes to the call, so give result() a time-out as well.
        * `stream`, `shape`: as for Producer.claim.

        Raises:

        * RingFull: the request ring is full.  Or so many calls are in flight that the caller has to
          take or release one first; this is raised at once, with any `timeout`.
        * PeerLost: there is no engine.
        * RingClosed: this client or the service was closed.
        """
        slot: RequestSlot = self._send(timeout, expires_s, stream, shape)
        return slot

    async def request_async(
        self,
        timeout: float | None = None,
        *,
        expires_s: float | None = None,
        stream: Any = None,
        shape: Sequence[int] | None = None,
    ) -> RequestSlot:
        """`request` for asyncio: other tasks run while this one waits, and any number may wait.

        They are served in the order in which they came.  If the caller has to release a call first,
        `request` raises at once, and this waits, because another task may release one.  A task that
        is cancelled while it waits has claimed nothing.  Send the request before the next `await`;
        otherwise other tasks wait for it.
        """
        begun, deadline = time.monotonic(), deadline_of(timeout)
        tasks, calls, turns = self._mailbox.tasks(), self._calls, 0
        if tasks.send_at_once and calls.has_room():
            try:
                return self.request(0, expires_s=expires_s, stream=stream, shape=shape)
            except (RingFull, PeerLost):
                pass
        until = None if expires_s is None else begun + seconds(expires_s, "expires_s")
        async with tasks.turn_to_send(deadline):
            while True:
                late = left_s(deadline) == 0
                try:
                    waited = timeout if late else None
                    # No name for the slot: an interrupt would keep this frame, and it the slot.
                    return self._send(0, left_s(until), stream, shape, waited)  # type: ignore[no-any-return]
                except PeerLost:
                    if late or time.monotonic() - begun >= self._engine_s:
                        raise
                    await asyncio().sleep(_ENGINE_POLL_S)
                except RingFull:
                    if late:
                        raise
                    if not calls.has_room():
                        await tasks.until(calls.has_room, deadline, calls.for_room)
                    else:
                        turns = await tasks.until_claimable(
                            self._requests._peer, self._sending, deadline, turns
                        )

    def call(
        self,
        fill: Callable[[RequestSlot], object] | Any,
        timeout: float | None = None,
        *,
        stream: Any = None,
    ) -> Answer:
        """Makes a whole call: `with client.call(image, timeout=1) as slot: slot.array`.

        * `fill`: a function that writes into the request's slot, or a value that is assigned to its
          array.
        * `timeout`: the time for the whole call, in seconds.  Engines leave the call out after it.
        * `stream`: the stream of the request and of the answer, as for `request` and `result`.

        Raises what `request` and `PendingCall.result` raise, and TypeError if `fill` is None.  The
        call is over then, also after a Ctrl-C or a FrameTorn.
        """
        deadline = deadline_of(timeout)
        with self.request(timeout, expires_s=timeout, stream=stream) as slot:
            call = _fill(slot, fill)
        try:
            done = self._mailbox.wait(call, left_s(deadline), stream)
            return call._outcome_of(done, timeout, stream)
        except BaseException:  # a Ctrl-C, a FrameTorn: nobody else could take its answer
            call.cancel()
            raise

    async def call_async(
        self,
        fill: Callable[[RequestSlot], object] | Any,
        timeout: float | None = None,
        *,
        stream: Any = None,
    ) -> Answer:
        """`call` for asyncio: `with await client.call_async(image, timeout=1) as slot: …`

        Other tasks run while it waits.  Raises what `request_async` and `PendingCall.result_async`
        raise.  A task that is cancelled while it waits cancels the call.
        """
        deadline = deadline_of(timeout)
        with await self.request_async(timeout, expires_s=timeout, stream=stream) as slot:
            call = _fill(slot, fill)
        try:
            return await call._result_by(deadline, timeout, stream)
        except BaseException:
            call.cancel()
            raise

    def fileno(self) -> int:
        """A descriptor for selectors, poll and event loops.  It is readable when an answer may have
        come to any call of this client.

        When it is readable, ask each call in flight whether it is `done`.  It is readable again
        when another answer comes.  It does not tell that a call is lost, so ask once in a while as
        well.  Never read or close it.  It is the same number until the client is closed.

        The first call starts a native thread, one for the process.  Raises OSError if there can be
        no thread or no descriptor, RingClosed if this client was closed, RingError in a forked
        child.
        """
        self._check_open()
        fd: int = self._mailbox._answers.fileno()
        return fd

    def _full(self, timeout: float | None) -> Exception:
        peer = self._requests._peer
        return diagnosis.refused(self.name, peer, _core.BLOCKED, verb="claim", timeout=timeout)

    def _await_engine(self, deadline: float | None) -> None:
        """Waits for up to `engine_s` seconds until there is an engine."""
        header = self._ring._header
        begun = time.monotonic()
        until = begun + self._engine_s
        if deadline is not None:
            until = min(until, deadline)
        while not has_engines(header, self._terms.kept):
            self._check_open()
            if header.closed:
                raise RingClosed(f"service {self.name!r} was closed")
            if time.monotonic() >= until:
                raise PeerLost(
                    f"service {self.name!r}: there is no engine, and none came within "
                    f"{max(0.0, until - begun):g} s"
                )
            time.sleep(_ENGINE_POLL_S)

    def _make_room(self, deadline: float | None) -> None:
        """Waits until this client's ring has a slot for one more answer."""
        mailbox, calls = self._mailbox, self._calls
        if mailbox.pump(calls.has_room, 0):
            return
        self._settle()
        if calls.has_room():
            return
        me = threading.get_ident()
        if all(call._thread == me and call._error is None for call in calls.all()):
            # Only the caller can end one, so it would wait for ever.
            raise RingFull(mailbox.no_room())
        if not mailbox.pump(calls.has_room, deadline, None, calls.for_room):
            self._check_open()
            raise RingFull(mailbox.no_room())

    def _settle(self) -> None:
        """Ends calls that a Ctrl-C has interrupted, and calls that nobody has any more.  Called
        with the turn to send."""
        live, slots, claimed = self._calls.all(), self._requests._slots, set()
        for index, seq in self._requests._peer.holding():
            if nobody_has(slots, index):
                slots[index]._end()
            else:
                claimed.add(seq)
        known = 3  # references: of Calls.live, of `live` and of `call`
        for k in range(len(live)):
            call = live[k]
            if call._seq in claimed:
                continue
            if call._sent_at < 0 or (call._answer_seq and not call._has_answer()):
                self._calls.end(call)
            elif references(live, k) == known and call._answer_is_lost():
                call.cancel()

    def _check_open(self) -> None:
        if self.closed:
            raise RingClosed(f"service {self.name!r}: this client was closed")

    def close(self) -> None:
        """Leaves the service.  Calls in flight are over: engines drop them, and threads that wait
        for one get RingClosed.  You may call it twice."""
        if self._ring.closed and self._mailbox.left:
            return
        owned = self._ring._header.creator_alive
        try:
            if not self._ring._header.forked:  # there nobody receives or sends
                self._mailbox.shut()
                with self._sending:
                    pass  # its owner sees that this client is closed
            self._ring.close()
        finally:
            self._mailbox.close()
        if not owned:
            remove_if_dead(self.name)  # this may have been the last one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        of = f"{self.in_flight} of {self._calls.limit} calls in flight"
        return f"<Client of {self.name!r}: {'closed' if self.closed else of}>"


def _fill(slot: RequestSlot, fill: Callable[[RequestSlot], object] | Any) -> PendingCall:
    call = slot.call
    if fill is None:
        raise TypeError(
            "call() takes a function that writes the request, or what is assigned to its array, "
            "not None"
        )
    if callable(fill):
        fill(slot)
    else:
        slot.array[...] = fill
    return call
