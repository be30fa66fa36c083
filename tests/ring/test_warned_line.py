"""A warning names the line of the program that it is about, and not one of gpuring."""

from __future__ import annotations

import asyncio
import linecache
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

import gpuring
from tests.helpers.commands import python
from tests.helpers.places import HOST
from tests.ring.align import Streams

SPEC = {"slots": 2, "shape": 4, "dtype": "u1", "device": "host"}


@pytest.fixture
def ring(name) -> Iterator[gpuring.Ring]:
    with gpuring.create(name, **SPEC) as made:
        yield made


@contextmanager
def one_warning(text: str) -> Iterator[None]:
    """Checks that a block gives one warning with this text, at its line that ends with `# this
    line`."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
    (one,) = [each for each in told if text in str(each.message)]
    line = linecache.getline(one.filename, one.lineno).rstrip()
    assert (one.filename, line.endswith("# this line")) == (__file__, True), (one, line)


def test_the_verb_that_gives_a_dropped_slot_back(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        with one_warning("nobody has its slot"):
            producer.claim(0)
            producer.claim(0).publish()  # this line
        with one_warning("nobody has its slot"):
            frames.acquire(0)
            next(iter(frames))  # this line


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_the_drop_of_a_producer_or_consumer(ring, role):
    peer = getattr(ring, role)()
    with one_warning(f"a {role} was not closed"):
        del peer  # this line


def test_the_drop_of_a_ring(name):
    ring = gpuring.create(name, **SPEC)
    with one_warning("was not closed"):
        del ring  # this line


@pytest.mark.parametrize("waits", ["sync", "async"])
def test_the_step_that_finds_a_value_that_went_back(name, waits):
    async def steps(aligned):
        async for _ in aligned:  # this line
            pass

    with ExitStack() as stack:
        both = Streams(stack, HOST, name)
        both.put(0, 1, 0)
        both.put(1, 1)
        both.end()
        with one_warning("went back"):
            if waits == "async":
                asyncio.run(steps(both.align("pts")))
            else:
                for _ in both.align("pts"):  # this line
                    pass


FOR_ITSELF = """
import sys, warnings, gpuring
def shown(message, category, filename, lineno, *_):
    print(filename, lineno)
    raise SystemExit  # else it would wait for ever
warnings.showwarning = shown
with gpuring.create(sys.argv[1], slots=2, shape=4, dtype="u1", device="host") as ring:
    with ring.producer() as producer, ring.consumer() as frames:
        claimed = producer.claim()
        for slot in frames:
            pass
"""


def test_the_loop_that_waits_for_itself(name):
    """The package's code for `for` loops lies between the program and the wait."""
    done = python(FOR_ITSELF, name)
    assert done.stdout == "<string> 10\n", done.stderr
