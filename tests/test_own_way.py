"""A wait that only its own thread could end is refused at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import sys, gpuring
name, which = sys.argv[1:]
options = {"slots": 2, "shape": 4, "dtype": "u1", "device": "host"}
with gpuring.create(name, **options) as ring, ring.producer() as producer:
    if which in ("claim", "claim_many"):
        held = [producer.claim(), producer.claim()]
        call = (lambda: producer.claim()) if which == "claim" else (lambda: producer.claim_many(2))
    elif which == "a reader that reads nothing":
        reader = ring.consumer()
        for _ in range(2):
            producer.claim().publish()
        call = producer.claim
    elif which == "a reader that holds":
        reader = ring.consumer("named")
        for _ in range(2):
            producer.claim().publish()
        held = [reader.acquire(), reader.acquire()]
        call = producer.claim
    else:
        reader = ring.consumer()
        held = producer.claim()
        call = (lambda: reader.acquire()) if which == "acquire" else lambda: reader.acquire_many(2)
    try:
        call()
    except gpuring.RingTimeout as error:
        print(type(error).__name__, error)
"""


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
from gpuring.diagnosis import waits_for_itself
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


def test_a_pid_of_another_namespace_is_another_process(name):
    """In each of two containers the program has pid 1, and one waits for the other."""
    unshare = "unshare", "--pid", "--fork", "--kill-child"
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("no pid namespaces here")
    done = subprocess.run(
        [*unshare, sys.executable, "-c", BESIDE_IT, name, IN_A_CONTAINER],
        check=True, capture_output=True, text=True, timeout=60, env=dict(os.environ),
    )  # fmt: skip
    assert done.stdout.startswith(f"1 False ring {name!r}"), done.stderr
    assert "peer 1 (pid 1) of subscription 'there' holds frame 2" in done.stdout


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
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_HANDLER, name],
        check=True, capture_output=True, text=True, timeout=20, env=dict(os.environ),
    )  # fmt: skip
    assert done.stdout == "claimed 2\n"


@pytest.mark.parametrize(
    ("which", "error"),
    [
        ("claim", "RingFull"), ("claim_many", "RingFull"),
        ("a reader that reads nothing", "RingFull"), ("a reader that holds", "RingFull"),
        ("acquire", "RingTimeout"), ("acquire_many", "RingTimeout"),
    ],
)  # fmt: skip
def test_a_wait_for_oneself_is_refused(name, which, error):
    """In a process that has one thread, with timeout=None."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, which],
        check=True, capture_output=True, text=True, timeout=20, env=dict(os.environ),
    )  # fmt: skip
    assert done.stdout.startswith(f"{error} ring {name!r}"), done.stderr
    assert "this process" in done.stdout
