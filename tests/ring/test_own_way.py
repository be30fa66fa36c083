"""There is a warning of a wait without a time-out that only the waiting thread could end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.helpers.commands import python

PROGRAM = """
import sys, warnings, gpuring
warnings.simplefilter("error", RuntimeWarning)  # else it would wait for ever

def waits(which, ring, producer):
    if which.startswith("claim"):
        held = [producer.claim(), producer.claim()]
        return producer.claim() if which == "claim" else producer.claim_many(2)
    reader = ring.consumer()
    if which.startswith("acquire"):
        held = producer.claim()
        return reader.acquire() if which == "acquire" else reader.acquire_many(2)
    for _ in range(2):
        producer.claim().publish()
    held = [reader.acquire(), reader.acquire()] if which == "a reader that holds" else []
    producer.claim()

for k, which in enumerate(sys.argv[2:]):
    name = f"{sys.argv[1]}-{k}"
    with gpuring.create(name, slots=2, shape=4, dtype="u1", device="host") as ring:
        try:
            waits(which, ring, ring.producer())
        except RuntimeWarning as warning:
            print(warning)
"""
WAITS = (
    "claim", "claim_many", "a reader that reads nothing", "a reader that holds",
    "acquire", "acquire_many",
)  # fmt: skip


IN_A_CONTAINER = """
import sys, gpuring
with gpuring.attach(sys.argv[1], timeout=20) as ring, ring.consumer("there") as frames:
    print("joined", flush=True)
    held = frames.acquire(20)
    print("holds", flush=True)
    sys.stdin.readline()
"""
BESIDE_IT = """
import os, subprocess, sys, gpuring
from gpuring.registry.diagnosis import waits_for_itself
name, program = sys.argv[1:]
with (
    gpuring.create(name, slots=2, shape=4, dtype="u1", device="host") as ring,
    ring.producer() as producer,
    subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", program, name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other,
):
    assert other.stdout.readline() == "joined\\n"
    for _ in range(2):
        producer.claim().publish()
    assert other.stdout.readline() == "holds\\n"
    try:
        producer.claim(0)
    except gpuring.RingFull as error:
        print(os.getpid(), waits_for_itself(producer._peer), error)
    other.stdin.close()
"""


@pytest.mark.slow
def test_a_pid_of_another_namespace_is_another_process(name):
    """The program has pid 1 in each of two containers, and one waits for the other."""
    unshare = "unshare", "--pid", "--fork", "--kill-child"
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("no pid namespaces here")
    done = subprocess.run(
        [*unshare, sys.executable, "-c", BESIDE_IT, name, IN_A_CONTAINER],
        check=True, capture_output=True, text=True, timeout=60, env=dict(os.environ),
    )  # fmt: skip
    assert done.stdout.startswith(f"1 False ring {name!r}"), done.stderr
    assert "pid 1 of another pid namespace) of subscription 'there' has held " in done.stdout


WITH_A_HANDLER = """
import signal, sys, gpuring
name = sys.argv[1]
with (
    gpuring.create(name, slots=1, shape=4, dtype="u1", device="host") as ring,
    ring.producer() as producer,
):
    held = [producer.claim()]
    signal.signal(signal.SIGALRM, lambda *_: held.pop().abandon())
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    print("claimed", producer.claim().seq)
"""


def test_a_signal_handler_may_end_the_wait(name):
    done = python(WITH_A_HANDLER, name, check=True)
    assert done.stdout == "claimed 2\n"


WITH_A_NATIVE_THREAD = """
import ctypes, sys, warnings, gpuring

class Event(ctypes.Structure):  # struct sigevent
    _fields_ = [
        ("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("_", ctypes.c_char * 64),
    ]

@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def callback(_):
    held.pop().abandon()

def calls_back_soon(*_):
    print("warned", flush=True)
    timer, in_1_ms = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 0, 0, 1000000)
    event = Event(notify=2, function=ctypes.cast(callback, ctypes.c_void_p))  # SIGEV_THREAD
    for library in (ctypes.CDLL(None), ctypes.CDLL("librt.so.1")):
        if hasattr(library, "timer_create"):
            assert library.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
            assert library.timer_settime(timer, 0, in_1_ms, None) == 0
            return

warnings.simplefilter("always")
warnings.showwarning = calls_back_soon
with (
    gpuring.create(sys.argv[1], slots=1, shape=4, dtype="u1", device="host") as ring,
    ring.producer() as producer,
):
    held = [producer.claim()]
    print("claimed", producer.claim().seq)
    producer.close()
"""


def test_the_callback_of_a_native_thread_may_end_the_wait(name):
    """Such a thread cannot be seen before it runs.  Callbacks of CUDA streams are like that."""
    done = python(WITH_A_NATIVE_THREAD, name, check=True)
    assert done.stdout.startswith("warned\nclaimed 2\n"), done.stderr


@pytest.mark.parametrize("before", ["", "import gpuring; gpuring.exit_on_sigterm()"])
def test_a_wait_for_oneself_is_warned_of(name, before):
    """The process has one thread of Python, and the wait has timeout=None."""
    done = python(before + PROGRAM, name, *WAITS, check=True)
    told = done.stdout.splitlines()
    assert len(told) == len(WAITS), done.stderr
    for k, line in enumerate(told):
        assert line.startswith(f"ring '{name}-{k}': this wait may never end: "), WAITS[k]
        assert "this process" in line, WAITS[k]
