"""Signals that come while a verb waits for the GPU of the fake driver (fake_driver.py)."""

from __future__ import annotations

import contextlib
import signal
import threading

from tests.helpers import fake_driver


def _in_driver(frame):
    while frame:
        if frame.f_code.co_filename == fake_driver.__file__:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def signalled(asked, act):
    """Within it, when `asked` is set, a signal comes whose handler calls `act`, once.

    It must not come within a call of the fake driver, which could not pass on an exception.  So the
    signal is sent again until it has come at another time."""
    over, main = threading.Event(), threading.main_thread().ident

    def handle(_signal, frame):
        if asked.is_set() and not over.is_set() and not _in_driver(frame):
            over.set()
            act()

    def press():
        asked.wait()
        while not over.wait(0.0005):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
        assert over.is_set()
    finally:
        over.set()
        asked.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def ctrl_c(driver, error=KeyboardInterrupt):
    """Keeps streams busy during a block, in which Ctrl-C comes while a verb waits for one of them.
    `error` is raised there, once."""
    asked = threading.Event()

    def busy(_stream):
        asked.set()
        return fake_driver.NOT_READY

    def interrupt():
        raise error

    before, driver.on_stream_query = driver.on_stream_query, busy
    try:
        with signalled(asked, interrupt):
            yield
    finally:
        driver.on_stream_query = before
