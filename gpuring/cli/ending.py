"""Commands that do nothing until Ctrl-C or SIGTERM ends them."""

from __future__ import annotations

import signal
import socket

_ENDS = (signal.SIGINT, signal.SIGTERM)


def wait_for_the_end() -> None:
    """Sleeps until one of the signals comes.  Later ones do nothing, so that the command can close
    what it has.

    The kernel may give a signal to a thread of some library, which has no mask.  sigwait() and
    pause() of this thread sleep on then.  Python writes the number of each signal into a socket,
    whichever thread has got it.  A signal that comes before that raises KeyboardInterrupt here.

    One that is ignored stays so: a shell has Ctrl-C ignored by what it starts in the background.
    """
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        try:
            signal.set_wakeup_fd(near.fileno(), warn_on_full_buffer=False)
            for number in _ENDS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, _do_nothing)
            while far.recv(1)[0] not in _ENDS:
                pass
        finally:
            signal.set_wakeup_fd(-1)


def _do_nothing(number: int, frame: object) -> None:
    pass
