"""Ctrl-C and SIGTERM end the demo or a benchmark as a whole, children and names in /dev/shm too.
The module of each says what it does then."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt in the block, as Ctrl-C does."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Both signals wait until the block is done.  Processes that are started in it ignore Ctrl-C.

    A terminal sends Ctrl-C to children as well, but the parent has to end them.  They inherit a
    signal mask, and no handler.  The parent needs a handler, because the signal may arrive in a
    thread of some library, which has its own mask.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    resource_tracker.ensure_running()  # it unblocks SIGINT where it is started
    before = {
        number: signal.signal(number, lambda number, frame: arrived.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # what was pending comes now
        for number, handler in before.items():
            signal.signal(number, handler)
        if arrived:
            raise KeyboardInterrupt
