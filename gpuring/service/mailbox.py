"""A client's membership in one service: its two rings, and what happened to its calls.

A client has one of these at a time.  If the service is replaced, the client makes another one in
the service that takes its place, and leaves the former one when no call of it is open any more.

This is what may be used here, and by whom:

* Only the thread that has the turn to receive (_books.pyx) runs `receive`, and with it `_look`.
* Only the thread that has the turn to send runs `settle`, `is_over` and what the writer does.
* Any thread may call `tasks`, `order`, `no_room`, `shut` and `close`, and read.
* `Tasks` are of one loop, whose thread alone uses them, except for `Tasks.wake`.
* A call belongs to the mailbox in which it was made, for ever.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuring.errors import PeerLost, RingError, RingTimeout
from gpuring.native.snapshot import snapshot
from gpuring.printable import counted
from gpuring.ring import inner
from gpuring.ring.whose import nobody_has, references
from gpuring.service import _inbox
from gpuring.service._inbox import Inbox
from gpuring.service._sender import has_engines
from gpuring.service._sleepers import nothing
from gpuring.service.pending import AnswerReader, PendingCall, RequestWriter
from gpuring.service.tasks import Queues, Tasks
from gpuring.service.wire import SPARE, Terms, make_answer_ring

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from gpuring.ring.caller import Whole
    from gpuring.ring.ring import Ring


@dataclass(frozen=True)
class Options:
    """What `connect` was given, for every service that the client joins."""

    calls: int
    parts: int
    engine_s: float
    label: str | None

    @property
    def answers(self) -> int:
        """How many slots the ring of answers has."""
        return self.calls * (1 + self.parts) + SPARE


class Mailbox(Inbox):
    """Where a client's requests leave and its answers arrive.  One thread at a time receives for
    all threads."""

    def __init__(
        self,
        requests: Ring,
        terms: Terms,
        options: Options,
        queues: Queues,
        whole: Whole,
    ) -> None:
        """If it raises, the caller closes the ring of requests."""
        super().__init__(requests.name, options.calls, options.parts)
        inner.belongs_to(requests, whole)
        self._requests = requests
        self.terms = terms
        self._engine_s = options.engine_s
        self._queues = queues
        self.id = secrets.randbits(64)
        self.writer = RequestWriter(requests, inner.join_producer(requests, options.label))
        self._ring = make_answer_ring(requests, terms, self.id, options.answers)
        inner.belongs_to(self._ring, whole)
        try:
            # A producer that never claims.  With it the stream of answers has no end while engines
            # come and go.
            self._presence = self._ring.producer(label=options.label)
            # The subscription is lossy, so that engines never wait for this client: they leave out
            # a slot that it holds.  Unread answers are not overwritten, because the client never
            # has more calls than there are slots.
            peer = inner.join_consumer(self._ring, "client", lossless=False, label=options.label)
            self._open(AnswerReader(self._ring, peer, lossless=False))
        except BaseException:
            self._ring.close()
            raise

    def _tasks_of(self, loop: AbstractEventLoop) -> Tasks:
        """The tasks of a new loop."""
        for table in (self._loops, self._queues):
            for each in list(table):
                if each.is_closed():
                    table.pop(each, None)
        tasks = self._loops[loop] = Tasks(self, loop, self._queues.setdefault(loop, {}))
        return tasks

    def no_room(self) -> str:
        live = self.calls.all()
        held = sum(call._has_answer() for call in live)
        given_up = sum(call._error is not None for call in live)
        limit = self.calls.limit
        told = (
            f"service {self.service!r}: this client has room for {counted(limit, 'call')}, "
            f"and {len(live)} {'is' if len(live) == 1 else 'are'} in flight, {held} of them "
            "answered and not released. "
        )
        if given_up:
            told += (
                f"{given_up} of them {'was' if given_up == 1 else 'were'} given up, by a time-out "
                f"for example, and {'needs' if given_up == 1 else 'need'} room until an engine "
                "answers or drops it. "
            )
        if len(live) < limit:
            told += (
                "Answers that were released need their room until this client has received what "
                "came before. "
            )
        takes = given_up < len(live) == limit
        first = "Take a result and release it" if takes else "Wait for the engines"
        return f"{told}{first} first, or connect(calls=…) with more"

    def _check_usable(self) -> None:
        """Raises RingError if this client cannot be used here."""
        inner.check_open(self._ring)

    # ---- what happened to the calls ------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Fails the calls that will never be answered."""
        calls = [
            call
            for call in self.calls.all()
            if call._sent_at >= 0 and now - call._sent_at >= _inbox.SLICE_S and call._answer is None
        ]
        if not calls:
            return
        for call in calls:
            if call._handed and call._was_left():
                call._lose()
            elif call._come:
                call._forget_if_left()
        header = inner.header(self._requests)
        if has_engines(header, self.terms.kept):
            self._orphaned = None
        elif self._orphaned is None:
            self._orphaned = now
        seen = snapshot(header)
        gone = False
        for call in calls:
            if why := self._why_gone(call, seen):
                gone = True
                kind: type[RingError] = PeerLost
                if call._expires is not None and call._expires < now and not call._come:
                    kind, why = RingTimeout, "it has expired, and no answer came"
                self._bury(call, kind, why)
        if not gone and self._orphaned is not None and now - self._orphaned >= self._engine_s:
            error = f"there has been no engine for {self._engine_s:g} s"
            for call in calls:  # they are still in the ring; an engine that comes passes over them
                self.calls.end(call, PeerLost(f"{call._label()}: {error}"), gone=False)
                call._withdraw()

    def _why_gone(self, call: PendingCall, seen: dict[str, Any]) -> str:
        """Why no engine has the call or will ever have it; "" if one has it, or may get it."""
        subscription = seen["subscriptions"].get(0)
        if subscription is None or subscription["start"] > call._seq:
            if seen["closed"]:
                return "the service was closed or replaced"
            return "its engine is gone, and there was no other one"
        index = call._seq % self._requests.slots
        slot, take = seen["slots"][index], subscription["takes"][index]
        if slot["seq"] == call._seq and slot["phase"] == "void":
            return "its request was not sent"
        if slot["seq"] > call._seq or (take["seq"] == call._seq and take["phase"] == "done"):
            return "an engine has dealt with it, and no answer came"
        return ""

    def _bury(self, call: PendingCall, kind: type[RingError], why: str) -> None:
        # An engine answers before it releases the request.  So an answer would be below this:
        if call._answered_below is None:
            call._answered_below = inner.header(self._ring).frontier
        if inner.peer(self._answers).position < call._answered_below:
            return  # it may not be read yet, or be behind one that is being written
        if call._answer is None:
            self.calls.end(call, kind(f"{call._label()} is lost: {why}"))

    # ---- the end -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Ends calls that a Ctrl-C has interrupted, and calls that nobody has any more.  Called
        with the turn to send."""
        live, slots, claimed = self.calls.all(), inner.slots(self.writer), set()
        for index, seq in inner.peer(self.writer).holding():
            if nobody_has(slots, index):
                if inner.is_open(slots[index]):  # else another thread has just sent it
                    inner.end(slots[index])
            else:
                claimed.add(seq)
        known = 3  # references: of Calls.live, of `live` and of `call`
        for k in range(len(live)):
            call = live[k]
            if call._seq in claimed:
                continue
            if call._sent_at < 0 or (call._answer_seq and not call._has_answer()):
                self.calls.end(call)  # it still needs room for parts that were not released
            if references(live, k) == known and call._answer_is_lost():
                call.cancel()

    def is_over(self) -> bool:
        """Whether nobody waits for a call, or has an answer or a part of one.  Called with the turn
        to send, when the service was replaced."""
        if self.left:
            return True
        self.pump(nothing, 0)
        self.settle()
        slots = inner.slots(self._answers)
        return all(call._error is not None for call in self.calls.all()) and all(
            nobody_has(slots, index) for index, _ in inner.peer(self._answers).holding()
        )

    def shut(self) -> None:
        """Ends every call, and waits until no other thread receives.  This may be a signal handler
        of a thread that receives itself."""
        self.calls.close(PendingCall._was_closed)
        for tasks in list(self._loops.values()):
            tasks.wake()
        self._loops.clear()
        with self.calls.turn:
            pass  # the thread that receives sees that the client is closed

    @property
    def left(self) -> bool:
        return self._ring.closed and self._requests.closed

    def close(self, waits: bool = True) -> None:
        """Leaves both rings.  If it shall not wait while another process has a membership lock, the
        watchdog leaves as soon as that lock is free."""
        if not waits:
            for each in (self.writer, self._presence, self._answers):
                inner.peer(each).drop()
        try:
            self._requests.close()
        finally:
            self._ring.close()
