"""The processes that an example starts.  They end with it, however it ends."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from multiprocessing import resource_tracker

SPAWN = multiprocessing.get_context("spawn")
logging.getLogger("asyncio").disabled = True  # it would tell of each task that a signal has ended


def start(name, function, *args):
    """Runs a function in a process.  Ctrl-C is for this one alone, which ends the others."""
    main = threading.current_thread() is threading.main_thread()
    process = SPAWN.Process(None, run, name, (function, *args), daemon=True)
    resource_tracker.ensure_running()  # its start ends what follows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the process inherits that
    try:
        with undivided() if main else nullcontext():
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


@contextmanager
def undivided():
    """Signals that come in the block are handled behind it.  A process that was started by half
    would complain."""
    came, numbers = [], (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, lambda *signal: came.append(signal)) for each in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number, frame in came:
            before[number](number, frame)


def run(function, *args):
    """However the parent ends, this process ends with it."""
    ended = multiprocessing.parent_process().join
    threading.Thread(target=lambda: (ended(), os._exit(1)), daemon=True).start()
    function(*args)


@contextmanager
def together():
    """If the block is broken off, the processes end before the rings that they use are closed."""
    try:
        yield
    except BaseException:
        for each in multiprocessing.active_children():
            each.terminate()
        raise


def until(ready, crew):
    """Waits until all are ready.  Ends the program if one of them ends before."""
    while not ready():
        if ended := [each.name for each in crew if not each.is_alive()]:
            sys.exit(f"{', '.join(ended)} ended before all were ready")
        time.sleep(0.01)


if __name__ == "__main__":
    raise SystemExit("usage: python examples/service.py, or another of the examples")
