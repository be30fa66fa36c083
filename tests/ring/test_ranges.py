"""GPURING_NVTX=1: each verb and each slice of the user's own is a range of NVTX.

A module takes the place of nvtx, and notes its calls.
"""

from __future__ import annotations

import json

import pytest

from tests.helpers import commands

NVTX = """
import json, sys

class Domain:
    def __init__(self, name):
        self.calls, self.open = [], 0
    def push_range(self, *, message, payload=None):
        self.calls.append([self.open, message, payload])
        self.open += 1
    def pop_range(self):
        self.open -= 1

domains = {}
def get_domain(name):
    return domains.setdefault(name, Domain(name))
"""

PROGRAM = """
import contextlib, json, sys
import gpuring, nvtx

with gpuring.create(sys.argv[1], slots=8, shape=8, dtype="u1", device="host") as ring:
    producer, consumer = ring.producer(), ring.consumer("viewer")
    with gpuring.annotate("mine"):
        producer.claim().publish()
    with producer.claim():
        pass
    producer.claim().abandon()
    producer.claim_many(2).publish()
    for slot in consumer:
        if slot.seq == 9:
            break
    del slot
    consumer.acquire_many(4).release()
    with contextlib.suppress(gpuring.RingTimeout):
        consumer.acquire(0)
    with contextlib.suppress(gpuring.RingTimeout):
        consumer.acquire(0.01)
    consumer.close()
    with ring.consumer(lossless=False) as newest:
        producer.claim().publish()
        newest.latest().release()
    producer.close()
((name, domain),) = nvtx.domains.items()
print(json.dumps([name, domain.open, domain.calls]))
"""


def run(name, folder, **more):
    env = commands.environment()
    env["PYTHONPATH"] = f"{folder}:{env.get('PYTHONPATH', '')}"
    return commands.python(PROGRAM, name, env=env | {"GPURING_NVTX": "1"} | more)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nvtx.py").write_text(NVTX)
    return tmp_path


def test_verbs_and_own_slices_are_ranges(name, folder):
    done = run(name, folder)
    assert done.returncode == 0, done.stderr
    domain, still_open, calls = json.loads(done.stdout)
    assert (domain, still_open) == ("gpuring", 0)
    n = name
    assert calls == [
        [0, "mine", None],
        [1, f"claim {n}", None], [1, f"publish {n}", 8],
        [0, f"claim {n}", None], [0, f"publish {n}", 9],
        [0, f"claim {n}", None], [0, f"abandon {n}", 10],
        [0, f"claim {n}", None], [0, f"publish {n}", 11],
        [0, f"acquire {n}", None], [0, f"release {n}", 8],
        [0, f"acquire {n}", None], [0, f"release {n}", 9],
        [0, f"acquire {n}", None], [0, f"release {n}", 11],
        [0, f"acquire {n}", None], [0, f"acquire {n}", None],
        [0, f"claim {n}", None], [0, f"publish {n}", 13],
        [0, f"latest {n}", None], [0, f"release {n}", 13],
    ]  # fmt: skip


def test_without_it_peers_have_no_ranges_and_nvtx_is_not_imported(name, folder):
    done = run(name, folder, GPURING_NVTX="0")
    assert done.returncode != 0  # without a domain the program fails
    assert "not enough values to unpack" in done.stderr


def test_without_nvtx_it_says_what_to_install(name, tmp_path):
    (tmp_path / "nvtx.py").write_text("raise ImportError")
    done = run(name, tmp_path)
    assert "GPURING_NVTX=1 needs the package nvtx: pip install 'gpuring[nvtx]'" in done.stderr


def test_the_real_nvtx_takes_the_calls(name):
    """No tool listens here, so nothing more can be seen."""
    pytest.importorskip("nvtx")
    program = """
import sys, gpuring
with gpuring.create(sys.argv[1], slots=2, shape=8, dtype="u1", device="host") as ring:
    with gpuring.annotate("mine"), ring.producer() as producer:
        producer.claim().publish()
    print(type(producer._peer).__name__)
"""
    done = commands.python(program, name, env=commands.environment() | {"GPURING_NVTX": "1"})
    assert done.stdout == "RangedPeer\n", done.stderr
