"""How a command ends that only waits for Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.helpers.commands import DEADLINE_S, environment, python, running

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


def interrupted_at(module):
    """The status of `gpuring ls` after a Ctrl-C while it imports a module, and what it has said.

    Python tells what it has imported into a pipe that is soon full, so that it can be no further.
    """
    program = "import sys, gpuring_command; sys.exit(gpuring_command.main())"
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-c", program, "ls"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        pipesize=4096, bufsize=0, env=environment(),
    ) as process:  # fmt: skip
        told = b""
        while not told.endswith(b" %s\n" % module):
            more = process.stderr.readline()
            assert more, told
            told += more
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        return process.wait(DEADLINE_S), told.decode()


@pytest.mark.parametrize("module", [b"numpy.version", b"gpuring.native.clock", b"gpuring.cli.top"])
def test_ctrl_c_while_a_command_is_imported_ends_it_quietly(module):
    status, told = interrupted_at(module)
    assert status == -signal.SIGINT
    assert "Traceback" not in told


@pytest.mark.slow
@pytest.mark.parametrize("order", [("CONT", "TERM"), ("TERM", "CONT"), ("CONT", "INT")])
def test_a_keeper_that_was_stopped_ends_when_it_is_told(name, order):
    """The kernel then gives the signal to any thread of the process."""
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
