"""Commands that do nothing until Ctrl-C or SIGTERM ends them."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

_ENDS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def ending() -> Iterator[Callable[[], None]]:
    """A function that sleeps until one of the signals comes, or has come since the block began.

    The signals do nothing else in the block, nor after it, so that the command can close what it
    has.  An exception that a handler raises would not do: Python drops it where it comes while an
    object is dropped.

    The kernel may give a signal to a thread of some library, which has no mask.  sigwait() and
    pause() of this thread sleep on then.  Python writes the number of each signal into a socket,
    whichever thread has got it.

    One that is ignored stays so: a shell has Ctrl-C ignored by what it starts in the background.
    """
    near, far = socket.socketpair()

    def wait() -> None:
        while far.recv(1)[0] not in _ENDS:
            pass

    with near, far:
        near.setblocking(False)
        try:
            signal.set_wakeup_fd(near.fileno(), warn_on_full_buffer=False)
            for number in _ENDS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, _do_nothing)
            yield wait
        finally:
            signal.set_wakeup_fd(-1)
            for number in _ENDS:
                if signal.getsignal(number) is _do_nothing:  # Python drops it when it ends
                    signal.signal(number, signal.SIG_IGN)


def _do_nothing(number: int, frame: object) -> None:
    pass
