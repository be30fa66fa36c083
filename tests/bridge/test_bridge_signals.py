"""Signals that end the commands of a bridge, whenever they come and however often."""

from __future__ import annotations

import signal
import sys
import threading
import traceback

import pytest

from tests.helpers.commands import exporting, line_with
from tests.helpers.support import poll

pytest.importorskip("zmq")

from gpuring import bridge
from gpuring.bridge.supervisor import Bridge

WAIT_S = 30.0


def test_a_signal_that_came_to_another_thread_interrupts_a_wait(near):
    """The kernel may choose any thread when the process was stopped and goes on."""
    handled, told = threading.Event(), []
    main = threading.get_ident()

    def interrupt(*_: object) -> None:
        handled.set()
        raise KeyboardInterrupt

    def waits() -> bool:
        stack = [frame.f_code for frame, _ in traceback.walk_stack(sys._current_frames()[main])]
        return stack[0].co_filename == threading.__file__ and Bridge.wait.__code__ in stack

    def send() -> None:
        poll(waits)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        told.append(handled.wait(WAIT_S))
        out.close()

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with bridge.export(near, listen="127.0.0.1:0") as out:
            sender = threading.Thread(target=send)
            sender.start()
            with pytest.raises(KeyboardInterrupt):
                out.wait()
            sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert told == [True]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_more_signals_do_not_interrupt_the_end(near, first):
    with exporting(near) as (run, _):
        run.send_signal(first)
        line_with(run, "ending")
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGTERM)
        assert run.wait(WAIT_S) == 0
        assert run.stderr is not None
        assert "is over" not in run.stderr.read()
