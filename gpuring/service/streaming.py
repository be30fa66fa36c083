"""Answers in parts: what a client takes one after the other, and what an engine sends.

A part is an answer to a call that does not end it.  The engine numbers the parts of a call, and the
client gives them out in this order.  docs/decisions/0018 says what happens if a number is missing.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from gpuring.deadlines import deadline_of, left_s
from gpuring.errors import CallCancelled, RingClosed, RingError, RingFull
from gpuring.native import seconds
from gpuring.native.signals import begun_elsewhere
from gpuring.printable import counted
from gpuring.ring.not_copyable import Unique
from gpuring.service._calls import HandsOut
from gpuring.service._envelopes import END
from gpuring.service._taken import Taken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from gpuring.ring.read_slot import ReadSlot
    from gpuring.ring.write_slot import WriteSlot

_SHORTEST_S, _LONGEST_S = 20e-6, 0.002
"""An engine that waits for a client looks again after such a time, which doubles.  The client does
not wake it: its word is in the request, and nobody sleeps there."""


async def _next_part(this: weakref.ref[Parts]) -> ReadSlot:
    try:
        parts = this()
        assert parts is not None  # the `async for` has it
        call, deadline = parts._call, deadline_of(parts._timeout)
        parts._give_back()
        while True:
            tasks = call._mailbox.tasks()
            done = await tasks.until(parts._has_next, deadline, call._sleepers, parts._stream)
            parts._prepare(done)
            part: ReadSlot | None = parts._hand_out()
            if part is not None:
                return part
            if call._is_over():  # else a thread has just found that its engine is gone
                raise StopAsyncIteration
    except BaseException:  # the task keeps the error and our local variables
        if (parts := this()) is not None:
            parts.close()
        raise


class Parts(HandsOut, Unique):
    """The parts of the answer to a call, for one `for` or `async for`.  `PendingCall.parts` makes
    it.

    Each part is an Answer.  It is released when the loop moves on.  If the loop is left before the
    end, the call is cancelled.  As a context manager it does the same at the end of the block.
    """

    def __init__(self, call: Any, timeout: float | None, stream: Any) -> None:
        seconds(timeout, "timeout")
        self._timeout, self._stream = timeout, stream
        super().__init__(call)
        call._streams = True

    @property
    def ready(self) -> bool:
        """Whether the next part or the end is here, so that the loop would not wait.  It does not
        wait, and releases the part before."""
        call = self._call
        self._give_back()
        ready: bool = call._mailbox.pump(self._has_next, 0, None, call._sleepers)
        call._asked()
        return ready

    def _move_on(self) -> None:
        """Waits until there is a part to hand out, or the end."""
        call, deadline = self._call, deadline_of(self._timeout)
        self._give_back()
        call._check_sent(self._timeout)
        done = call._mailbox.pump(self._has_next, deadline, self._stream, call._sleepers)
        self._prepare(done)

    __anext__ = begun_elsewhere(_next_part)

    def _has_next(self) -> bool:
        call = self._call
        if not call._handed and call._is_left():
            if not call._was_left():
                return False  # the end of the answer may be among what it has sent
            call._begin_again()  # the next engine gives the answer from its beginning
        return bool(call._has_part())

    def _give_back(self) -> None:
        """Releases the part that the body of the loop is done with."""
        if (part := self._call._part_out()) is not None:
            part.release()

    def _prepare(self, done: bool) -> None:
        """Raises what there is instead of a part."""
        call = self._call
        call._asked()
        if not done and not call._mailbox.calls.closed and not call._has_part():
            late = call._late("part", self._timeout)
            call._give_up(late)
            raise call._error or late
        if (part := call._next_part()) is not None:
            call._mailbox.order(part, self._stream)

    def close(self) -> None:
        """Cancels the call, unless all parts were taken.  You may call it twice."""
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<parts of {self._call!r}, {self._call._handed} taken>"


class InParts(Taken):
    """The verbs of a call that an engine answers in parts."""

    __slots__ = ()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more: the client has given the call up, is dead,
        or has left.  It makes a call to the system at most once in a millisecond.  Raises RingError
        if the call was answered."""
        self._request()
        return self._is_withdrawn() or self._server._delivery.reach(self._client) is None

    @property
    def window(self) -> int:
        """How many parts may have been sent and not yet been released by the client, as its
        `connect(parts=…)` says.  0: it takes no parts.  Raises RingError if the call was
        answered."""
        self._request()
        return self._window

    def part(
        self,
        timeout: float | None = None,
        *,
        stream: Any = None,
        shape: Sequence[int] | None = None,
    ) -> WriteSlot:
        """Returns a slot for a part of the answer.  As a context manager it sends the part at the
        end of the block.  Afterwards send more parts, or end the call: with `answer`, which is the
        last part then, with `end`, or with `fail`.  `stream` and `shape` are as for Producer.claim.

        The client gets the parts in the order in which they were sent.  If it has not released
        `window` of them, this waits up to `timeout` seconds.  None waits for ever, and 0 does not
        wait.  Other clients are not concerned.

        Raises:

        * RingFull: the client has not released enough parts.  Nothing was sent, so try it again
          later, and serve others meanwhile.
        * CallCancelled: nobody waits for the answer any more.  The call is over then, and need not
          be ended.
        * RingError: the call is answered already, its client takes no parts, or another part of it
          is being written.
        * DeviceError.
        """
        self._request()
        server, deadline = self._server, deadline_of(timeout)
        self._check_window("connect(parts=…) gives it room for some")
        pause_s = _SHORTEST_S
        while True:
            writer = server._delivery.reach(self._client)
            if writer is None or self._is_withdrawn():
                self._cancelled()
            rest_s = left_s(deadline)
            if self._is_writing(writer) or self._may_send(writer):
                try:
                    slot: WriteSlot = server._claim_part(
                        self, writer, min(_LONGEST_S, rest_s), stream, shape
                    )
                    return slot
                except RingClosed:
                    continue  # the client leaves just now
                except RingFull:
                    pass
            else:
                writer.void_begun()  # the client may have to read beyond them
            if not rest_s:
                raise RingFull(
                    f"service {server.name!r}: the client of call {self._number} has not released "
                    f"{counted(self._window, 'part')} within {seconds(timeout, 'timeout'):g} s"
                )
            time.sleep(min(pause_s, rest_s))
            pause_s = min(2 * pause_s, _LONGEST_S)

    def _check_window(self, so: str) -> None:
        if not self._window:
            raise RingError(
                f"service {self._server.name!r}: the client of call {self._number} takes no "
                f"parts: {so}"
            )

    def end(self) -> None:
        """Ends a call whose answer was sent in parts, without another part.  A call without parts
        then has an empty answer, which only `PendingCall.parts` can take.

        Raises RingError if the call is answered already, or its client takes no parts."""
        self._request()
        self._check_window("end() ends an answer in parts, so use answer(), reply() or fail()")
        with self._server._claim_answer(self, None, None, END):
            pass

    def _cancelled(self) -> None:
        self._request()
        server, number = self._server, self._number
        server._end_cancelled(self)
        raise CallCancelled(
            f"service {server.name!r}: the client of call {number} has given it up, has left or is "
            "dead"
        )
