"""The end of commands that only wait for Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
import signal

import pytest

from tests.helpers.commands import DEADLINE_S, python, running

WAITER = """
import signal, threading
from gpuring.cli.ending import wait_for_the_end

def tell(number):
    while signal.getsignal(number) is before:  # until it waits
        pass
    signal.pthread_kill(threading.get_ident(), number)

number = signal.SIGTERM
signal.signal(number, signal.default_int_handler)
before = signal.getsignal(number)
thread = threading.Thread(target=tell, args=[number], daemon=True)
thread.start()
wait_for_the_end()
thread.join()
print("told")
"""


def test_a_signal_that_comes_in_another_thread_ends_it():
    assert python(WAITER, timeout=20).stdout == "told\n"


def test_ctrl_c_stays_ignored_where_it_was():
    ignores = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    told = "\nprint(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    assert python(ignores + WAITER + told, timeout=20).stdout == "told\nTrue\n"


@pytest.mark.slow
@pytest.mark.parametrize("order", [("CONT", "TERM"), ("TERM", "CONT"), ("CONT", "INT")])
def test_a_keeper_that_was_stopped_ends_when_it_is_told(name, order):
    """The kernel may then give the signal to any thread of the process."""
    for tries in range(10):
        with running(
            "keep", f"{name}.{tries}", "--slots", 2, "--shape", 4, "--dtype", "u1",
            "--device", "host",
        ) as process:  # fmt: skip
            assert process.stdout.readline().startswith("keeping ")
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            for each in order:
                process.send_signal(getattr(signal, f"SIG{each}"))
            assert process.stdout.readline() == f"closing {name}.{tries}\n"
            assert process.wait(DEADLINE_S) == 0
