"""A client's own ring, where its answers arrive, and what happened to the calls that have none.

Only the thread that has the turn to receive (calls.py) runs this code, except for `pump`, `order`
and code that only reads.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuring._signals import Attempt
from gpuring._snapshot import snapshot
from gpuring.errors import CallFailed, FrameTorn, PeerLost, RingClosed, RingError, RingTimeout
from gpuring.service.calls import Calls, Sleepers, Thread
from gpuring.service.pending import Answer, AnswerReader, PendingCall
from gpuring.service.tasks import SLICE_S, Tasks, left_s
from gpuring.service.wire import FAILED, SPARE, Terms, make_answer_ring
from gpuring.slot import ReadSlot

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from gpuring._core import Peer
    from gpuring.ring import Ring


class Mailbox:
    """Where a client's answers arrive.  One thread at a time receives for all threads."""

    def __init__(self, requests: Ring, terms: Terms, limit: int, engine_s: float) -> None:
        self._requests = requests
        self._terms = terms
        self._engine_s = engine_s
        self.id = secrets.randbits(64)
        self.calls: Calls[PendingCall] = Calls(limit)
        self.late = 0
        self._loops: dict[AbstractEventLoop, Tasks] = {}  # each loop adds its own
        self._looked = time.monotonic()
        self._orphaned: float | None = None  # since when there has been no engine
        self._ring = make_answer_ring(requests, terms, self.id, limit + SPARE)
        try:
            # A producer that never claims.  With it the stream of answers has no end while engines
            # come and go.
            self._presence = self._ring.producer()
            # The subscription is lossy, so that engines never wait for this client: they leave out
            # a slot that it holds.  Unread answers are not overwritten, because the client never
            # has more calls than there are slots.
            peer = self._ring._join("client", False, "next", None, True)
            self._answers = AnswerReader(self._ring, peer, False, (None, True, None), False)
        except BaseException:
            self._ring.close()
            raise

    @property
    def service(self) -> str:
        return self._requests.name

    @property
    def peer(self) -> Peer:
        return self._answers._peer

    def tasks(self) -> Tasks:
        """The tasks of the running loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        tasks = self._loops.get(loop)
        if tasks is None:
            for each in list(self._loops):
                if each.is_closed():
                    self._loops.pop(each, None)
            tasks = self._loops[loop] = Tasks(self, loop)
        return tasks

    def no_room(self) -> str:
        live = self.calls.all()
        held = sum(call._has_answer() for call in live)
        return (
            f"service {self.service!r}: {len(live)} calls of this client are in flight, "
            f"{held} of them answered and not released, and it has room for {self.calls.limit}. "
            "Take a result and release it first, or connect(calls=…) with more"
        )

    # ---- receiving -----------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Receives the answers that are there.  Called before each request, so that the spare slots
        are free again."""
        if self._ring._header.frontier > self._answers._peer.position:
            self.pump(lambda: False, 0)

    def wait(self, call: PendingCall, timeout: float | None, stream: Any = None) -> bool:
        if call._is_done():
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        return self.pump(call._is_done, deadline, stream, call._sleepers)

    def pump(
        self,
        ready: Callable[[], bool],
        deadline: float | None,
        stream: Any = None,
        sleepers: Sleepers | None = None,
    ) -> bool:
        """Receives answers to all calls until ready().  Returns False if the deadline has passed or
        the client was closed.  It looks at least once.

        One of the threads that wait receives for all of them.  When it is done, another one does.
        Whoever makes `ready` true wakes the `sleepers`.
        """
        calls, looked = self.calls, False
        sleeper, sleepers = None, {} if sleepers is None else sleepers
        while not ready():
            left = left_s(deadline)
            if calls.closed or (looked and left == 0):
                return False
            looked = True
            slice_s = SLICE_S if left is None else min(left, SLICE_S)
            if sleeper is not None:
                calls.inherit(sleeper)
            mine = False
            try:
                with Attempt(calls.turn) as mine:
                    if mine:
                        self.receive(slice_s, stream)
            finally:
                if mine:
                    calls.pass_turn()
            if mine:
                continue
            if sleeper is None:
                self._ring._check_open()  # in a forked child nobody receives
                sleeper = Thread()
                looked = left == 0
            else:
                try:
                    if calls.enter(sleeper, sleepers, ready):
                        sleeper.sleep(slice_s)
                finally:
                    calls.leave(sleeper, sleepers)
        return True

    def receive(self, timeout: float, stream: Any) -> None:
        """Called with the turn to receive."""
        with contextlib.suppress(RingTimeout):
            self._dispatch(self._answers.acquire(timeout, stream=stream))
            while self._ring._header.frontier > self._answers._peer.position:
                self._dispatch(self._answers.acquire(0, stream=stream))
        now = time.monotonic()
        if now - self._looked >= SLICE_S:
            self._looked = now
            self._dispatch_strays()
            self._look(now)

    def _dispatch(self, answer: ReadSlot) -> None:
        assert isinstance(answer, Answer)
        envelope, index = self._answers.envelope, answer.index
        self._orphaned = None
        call = self.calls.live.get(int(envelope["call"][index]))
        if call is not None and not call._is_done() and envelope["status"][index] == FAILED:
            text = bytes(envelope["text"][index]).decode(errors="replace")
            self.calls.end(call, CallFailed(f"{call._label()} failed: {text}"))
            _discard(answer)
        elif call is None or not self.calls.arrive(call, answer):
            self.late += 1
            _discard(answer)
            if call is not None and call._error is not None:
                self.calls.end(call)

    def order(self, answer: Answer, stream: Any) -> None:
        """Orders the stream behind the answer, which another thread may have received on another
        stream."""
        if answer._device is not None:
            current = answer._device.current_stream
            answer._import_on(current() if stream is None else self._answers._handle(stream))

    # ---- what happened to the calls ------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Fails the calls that will never be answered."""
        calls = [
            call
            for call in self.calls.all()
            if call._sent_at is not None and now - call._sent_at >= SLICE_S and call._answer is None
        ]
        if not calls:
            return
        header = self._requests._header
        if self._terms.engines(header):
            self._orphaned = None
        elif self._orphaned is None:
            self._orphaned = now
        seen = snapshot(header)
        gone = False
        for call in calls:
            if why := self._why_gone(call, seen):
                gone = True
                kind: type[RingError] = RingClosed if seen["closed"] else PeerLost
                if call._expires is not None and call._expires < now:
                    kind, why = RingTimeout, "it has expired, and no answer came"
                self._bury(call, kind, why)
        if not gone and self._orphaned is not None and now - self._orphaned >= self._engine_s:
            error = f"there has been no engine for {self._engine_s:g} s"
            for call in calls:  # they are still in the ring: an engine may come and take them
                self.calls.end(call, PeerLost(f"{call._label()}: {error}"), gone=False)

    def _why_gone(self, call: PendingCall, seen: dict[str, Any]) -> str:
        """Why no engine has the call or will ever have it; "" if one has it, or may get it."""
        subscription = seen["subscriptions"].get(0)
        if subscription is None or subscription["start"] > call._seq:
            if seen["closed"]:
                return "the service was closed"
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
            call._answered_below = self._ring._header.frontier
        if self._answers._peer.position < call._answered_below:
            return  # it may not be read yet, or be behind one that is being written
        if call._answer is None:
            self.calls.end(call, kind(f"{call._label()} is lost: {why}"))

    def _dispatch_strays(self) -> None:
        """Dispatches answers that this client holds and nobody has: a Ctrl-C came after acquire."""
        answers = [call._answer for call in self.calls.all() if call._has_answer()]
        known = {answer.index for answer in answers if answer is not None}
        for index, _ in self._answers._peer.holding():
            if index not in known:
                self._dispatch(self._answers._slots[index])

    # ---- the end -------------------------------------------------------------------------------

    def shut(self) -> None:
        """Ends every call, and waits until no other thread receives.  This may be a signal handler
        of a thread that receives itself."""
        self.calls.close(lambda call: RingClosed(f"{call._label()}: this client was closed"))
        for tasks in list(self._loops.values()):
            tasks.wake()
        self._loops.clear()
        with self.calls.turn:
            pass  # the thread that receives sees that the client is closed

    @property
    def left(self) -> bool:
        return self._ring.closed

    def close(self) -> None:
        self._ring.close()


def _discard(answer: ReadSlot) -> None:
    with contextlib.suppress(FrameTorn):
        ReadSlot.release(answer)  # not Answer.release: its call is over, or has another answer
