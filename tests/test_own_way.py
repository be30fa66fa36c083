"""A wait that only its own thread could end is refused at once."""

from __future__ import annotations

import os
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
