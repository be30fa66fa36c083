"""The end of commands that only wait for Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
import signal

import pytest

from tests.helpers.commands import DEADLINE_S, python, running

OPTIONS = ("--slots", 2, "--shape", 4, "--dtype", "u1", "--device", "host")
WAITER = """
import signal, threading
from gpuring.cli.ending import ending

def tell():
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

with ending() as wait:
    thread = threading.Thread(target=tell)
    thread.start()
    wait()
    thread.join()
print("told")
"""
LATE = """
import os, sys

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)

sys.late = Late()
"""
KEEPER = """
import os, signal, sys
import gpuring
from gpuring.cli import main

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

def create(*args, made=gpuring.create, **options):
    ring = made(*args, **options)
    Dropped()
    return ring

gpuring.create = create
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_that_comes_in_another_thread_ends_it():
    assert python(WAITER).stdout == "told\n"


def test_ctrl_c_stays_ignored_where_it_was():
    ignores = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    told = "\nprint(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    assert python(ignores + WAITER + told).stdout == "told\nTrue\n"


def test_a_signal_behind_the_block_does_not_kill():
    """Python drops a handler of its own while it ends, but not that a signal is ignored."""
    assert python(WAITER + LATE).returncode == 0


def test_a_signal_that_comes_while_an_object_is_dropped_ends_a_keeper(name):
    """Python drops what a handler raises there."""
    done = python(KEEPER, "keep", name, *OPTIONS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"\nclosing {name}\n")


@pytest.mark.slow
@pytest.mark.parametrize("order", [("CONT", "TERM"), ("TERM", "CONT"), ("CONT", "INT")])
def test_a_keeper_that_was_stopped_ends_when_it_is_told(name, order):
    """The kernel may then give the signal to any thread of the process."""
    for tries in range(10):
        with running("keep", f"{name}.{tries}", *OPTIONS) as process:
            assert process.stdout.readline().startswith("keeping ")
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            for each in order:
                process.send_signal(getattr(signal, f"SIG{each}"))
            assert process.stdout.readline() == f"closing {name}.{tries}\n"
            assert process.wait(DEADLINE_S) == 0
