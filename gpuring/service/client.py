"""A client as users have it: it makes calls, waits for an engine if there is none, and goes on in
the service that takes the place of its own."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpuring import native
from gpuring.deadlines import deadline_of, left_s
from gpuring.errors import PeerLost, RingClosed, RingError, RingFull, RingTimeout
from gpuring.printable import counted
from gpuring.registry import diagnosis
from gpuring.ring import inner
from gpuring.ring.caller import Whole
from gpuring.ring.not_copyable import Unique
from gpuring.service._sender import Sender, has_engines, is_closed
from gpuring.service._sleepers import Attempt, Turn, asyncio, nothing
from gpuring.service.assigning import filled
from gpuring.service.mailbox import Mailbox, Options
from gpuring.service.pending import Answer, PendingCall, RequestSlot, RequestWriter
from gpuring.service.tasks import Queues
from gpuring.service.wire import ClientId, Terms, check_replacement

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpuring.ring.ring import Ring

_ENGINE_POLL_S = 0.005


class Client(Sender, Unique):
    """A client of a service.  `connect` makes it.  Several threads may use it.

    If the service is replaced, or started again after its end, the next request goes to the new
    one.
    """

    _ring: Ring
    _requests: RequestWriter
    _mailbox: Mailbox
    _former: list[Mailbox]
    if TYPE_CHECKING:  # of _sender.Sender, which has their docstrings

        def request(
            self,
            timeout: float | None = None,
            *,
            expires_s: float | None = None,
            stream: Any = None,
            shape: Sequence[int] | None = None,
        ) -> RequestSlot: ...
        def try_request(
            self,
            *,
            expires_s: float | None = None,
            stream: Any = None,
            shape: Sequence[int] | None = None,
        ) -> RequestSlot | None: ...
        @property
        def dropped(self) -> int: ...

    def __new__(cls, *made: object, **_: object) -> Self:
        if len(made) < 3:
            raise TypeError("a Client comes from gpuring.connect()")
        return super().__new__(cls)

    def __init__(self, ring: Ring, terms: Terms, options: Options) -> None:
        self._options, self._engine_s = options, options.engine_s
        self._queues: Queues = {}
        self._readable: select.epoll | None = None
        """Watches the descriptors of all its mailboxes.  None: fileno() was not called."""
        self._late = 0  # in the services that it has left
        self._whole = Whole(f"service {ring.name!r}: a client", "it leaves the service")
        box = Mailbox(ring, terms, options, self._queues, self._whole)
        super().__init__(ring, box.writer, box, Turn(), box.id, terms.kept, PendingCall)

    @property
    def id(self) -> ClientId:
        """The number by which engines know this client, `call.client` there.  It is another one in
        each service."""
        return ClientId(self._id)

    @property
    def name(self) -> str:
        """The name of the service that this client uses."""
        return self._ring.name

    @property
    def ring(self) -> Ring:
        """The ring that requests go through, shared by all clients and engines.  It is another one
        after the service was replaced."""
        return self._ring

    @property
    def closed(self) -> bool:
        """Whether this client was closed."""
        return self._calls.closed or self._ring.closed

    @property
    def in_flight(self) -> int:
        """How many calls need room.  These are calls whose request is being written or was sent,
        calls whose answer was not released, and calls that were given up and whose answer may still
        come.  A call that nobody refers to any more, and whose answer nobody has, is given up by
        this look."""
        with Attempt(self._sending) as mine:
            if mine and not self.closed:
                self._leave_former()
                self._settle()
        if self._calls.live and not self.closed:
            self._mailbox.pump(nothing, 0)
        return sum(len(each.calls.live) for each in self._mailboxes())

    @property
    def late(self) -> int:
        """How many answers were discarded.  They were for calls that had been given up, or were
        second answers to a call, which an engine's death may cause."""
        return self._late + sum(each.late for each in self._mailboxes())

    def _mailboxes(self) -> list[Mailbox]:
        return [*self._former, self._mailbox]

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
        deadline, turns = deadline_of(timeout), 0
        if self._sends_at_once():
            try:
                return self._send(0, expires_s, stream, shape)  # type: ignore[no-any-return]
            except (RingFull, PeerLost):
                pass
        begun = time.monotonic()
        until = None if expires_s is None else deadline_of(expires_s, "expires_s")
        queue = self._mailbox.tasks()
        async with queue.turn_to_send(deadline, lambda who: self._no_turn(timeout, who)):
            while True:
                late = left_s(deadline) == 0
                try:
                    waited = timeout if late else None
                    expires_s = None if until is None else left_s(until)
                    # No name for the slot: an interrupt would keep this frame, and it the slot.
                    return self._send(0, expires_s, stream, shape, waited)  # type: ignore[no-any-return]
                except PeerLost:
                    if late or time.monotonic() - begun >= self._engine_s:
                        patience_s = self._engine_s if timeout is None else timeout
                        raise self._nobody(min(patience_s, self._engine_s)) from None
                    await asyncio().sleep(_ENGINE_POLL_S)
                except RingFull:
                    if late:
                        raise
                    box = self._mailbox  # another one if the service was replaced meanwhile
                    if not self._may_send():
                        await box.tasks().until(self._may_send, deadline, box.calls.for_room)
                    else:
                        turns = await box.tasks().until_claimable(
                            inner.peer(box.writer), self._sending, deadline, turns
                        )

    def call(
        self,
        fill: Callable[[RequestSlot], object] | Any,
        timeout: float | None = None,
        *,
        stream: Any = None,
    ) -> Answer:
        """Makes a whole call: `with client.call(image, timeout=1) as slot: slot.array`.

        * `fill`: a function that writes into the request's slot, or a value for its array, of the
          same shape, that can be cast to its dtype (NumPy's "same_kind").
        * `timeout`: the time for the whole call, in seconds.  Engines leave the call out after it.
        * `stream`: the stream of the request and of the answer, as for `request` and `result`.

        Raises what `request` and `PendingCall.result` raise, ValueError for a value of another
        shape, and TypeError for one that cannot be cast, or None.  The call is over then, also
        after a Ctrl-C or a FrameTorn.
        """
        deadline = deadline_of(timeout)
        with self.request(timeout, expires_s=timeout, stream=stream) as slot:
            call = filled(slot, fill)
        try:
            done = call._mailbox.wait(call, left_s(deadline), stream)
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
            call = filled(slot, fill)
        try:
            return await call._result_by(deadline, timeout, stream)
        except BaseException:
            call.cancel()
            raise

    def fileno(self) -> int:
        """A descriptor for selectors, poll and event loops.  It is readable when an answer may have
        come to any call of this client.

        When it is readable, ask each call in flight whether it is `done`.  It is readable again
        when another answer comes.  It does not show that a call is lost, so ask once in a while as
        well.  Never read or close it.  It is the same number until the client is closed, also after
        the service was replaced.

        The first call starts a native thread, one for the process.  Raises OSError if there can be
        no thread or no descriptor, RingClosed if this client was closed, RingError in a forked
        child.
        """
        self._check_open()
        if self._readable is None:
            self._readable = select.epoll()
        for each in self._mailboxes():
            self._watch(each)
        return self._readable.fileno()

    def _watch(self, box: Mailbox) -> None:
        """Makes the descriptor of this client readable when that of the mailbox is."""
        if self._readable is not None:
            with contextlib.suppress(FileExistsError):
                self._readable.register(box.fileno(), select.EPOLLIN)

    def _full(self, timeout: float | None) -> Exception:
        peer = inner.peer(self._requests)
        error = diagnosis.refused(self.name, peer, native.BLOCKED, verb="claim", timeout=timeout)
        return RingFull(f"{error}{self._requests.held_call(self._id)}")

    def _no_turn(self, timeout: float | None, others: str) -> Exception:
        """To whom the turn to send has not come in time: what those who have it wait for."""
        self._check_open()
        if not self._has_engines():
            return self._nobody(timeout or 0)
        return RingFull(f"service {self.name!r}: {others} waiting to send a request")

    def _await_engine(self, deadline: float | None) -> None:
        """Waits for up to `engine_s` seconds until there is an engine, in this service or in one
        that has taken its place.  Called with the turn to send."""
        begun = time.monotonic()
        until = begun + self._engine_s
        if deadline is not None:
            until = min(until, deadline)
        while not self._has_engines():
            self._check_open()
            if self._follow(until):
                continue
            if time.monotonic() >= until:
                raise self._nobody(max(0.0, until - begun))
            time.sleep(_ENGINE_POLL_S)

    def _is_closed(self) -> bool:
        """Whether the service was closed or replaced."""
        return is_closed(inner.header(self._ring))

    def _has_engines(self) -> bool:
        header = inner.header(self._ring)
        return not is_closed(header) and has_engines(header, self._mailbox.terms.kept)

    def _nobody(self, waited_s: float) -> PeerLost:
        within = f" within {round(waited_s, 3):g} s" if waited_s else ""
        if self._is_closed():
            told = f"it was closed, and no other service of its name came{within or ' yet'}"
        else:
            told = f"there is no engine{within and f', and none came{within}'}"
        return PeerLost(f"service {self.name!r}: {told}")

    def _follow(self, deadline: float) -> bool:
        """Joins the service that has the name now, if it is another one.  Called with the turn to
        send.  Calls in the former one go on there until they end."""
        ring = inner.successor(self._ring)
        if ring is None:
            return False
        box = None
        try:
            inner.header(ring).join_within(max(0.0, deadline - time.monotonic()))
            terms = Terms.of(ring)
            check_replacement(self._ring, self._mailbox.terms, ring, terms)
            box = Mailbox(ring, terms, self._options, self._queues, self._whole)
            self._watch(box)
            return self._settle_in(ring, box.writer, box, box.id, terms.kept)
        except RingClosed:  # it has ended meanwhile
            return False
        except RingTimeout:  # another process has its lock, and may be stopped
            if time.monotonic() < deadline:
                raise
            return False
        finally:
            if box is not None and self._mailbox is box:
                self._watch(box)  # fileno() may have been called meanwhile
            elif box is not None:
                box.close()
            else:
                ring.close()

    def _leave_former(self) -> None:
        """Leaves the services that were replaced and in which nobody has a call any more.  Called
        with the turn to send."""
        for box in list(self._former):
            if not box.is_over():
                continue
            with Attempt(box.calls.turn) as mine, contextlib.suppress(RingError):
                if mine:
                    self._leave(box)
            if box.left:
                self._former.remove(box)
                self._late += box.late

    def _leave(self, box: Mailbox) -> None:
        if self._readable is not None and not box.left:
            with contextlib.suppress(OSError, RingError):
                self._readable.unregister(box.fileno())
        box.shut()
        box.close(waits=False)

    def _may_send(self) -> bool:
        """Whether there is room for a call, or will be in the service that takes the place of this
        one."""
        return self._calls.has_room() or self._is_closed()

    def _make_room(self, deadline: float | None) -> None:
        """Waits until this client's ring has a slot for one more answer."""
        mailbox, calls = self._mailbox, self._calls
        if mailbox.pump(self._may_send, 0):
            return
        self._settle()
        if calls.has_room():
            return
        me, live = threading.get_ident(), calls.all()
        mine = all(call._thread == me and call._error is None for call in live)
        if mine and len(live) >= calls.limit:
            # Only the caller can end one, so it would wait for ever.
            raise RingFull(mailbox.no_room())
        if not mailbox.pump(self._may_send, deadline, None, calls.for_room):
            self._check_open()
            raise RingFull(mailbox.no_room())

    def _settle(self) -> None:
        self._mailbox.settle()

    def _check_open(self) -> None:
        if self.closed:
            raise RingClosed(f"service {self.name!r}: this client was closed")

    def close(self) -> None:
        """Leaves the service.  Calls in flight are over: engines drop them, and threads that wait
        for one get RingClosed.  You may call it twice."""
        if self.closed and all(each.left for each in self._mailboxes()):
            return
        if not inner.header(self._ring).forked:  # there nobody receives or sends
            while not self._calls.closed:  # once, unless the service is replaced meanwhile
                self._mailbox.shut()
            for each in self._former:
                each.shut()
            with self._sending:
                pass  # its owner sees that this client is closed
        with contextlib.ExitStack() as stack:
            for each in self._mailboxes():
                stack.callback(each.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        live = [call for each in self._mailboxes() for call in each.calls.all()]
        given_up = sum(call._error is not None for call in live)
        of = f"{len(live)} of {counted(self._calls.limit, 'call')} in flight"
        of += f", {given_up} of them given up" if given_up else ""
        return f"<Client of {self.name!r}: {'closed' if self.closed else of}>"
