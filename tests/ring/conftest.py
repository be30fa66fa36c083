"""The ring of tests that want no other one, and what a ring has left."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import gpuring
from tests.helpers.processes import open_files
from tests.helpers.rings import segments_of, small_ring


@pytest.fixture
def ring(name: str) -> Iterator[gpuring.Ring]:
    with small_ring(name) as made:
        yield made


@pytest.fixture
def traces() -> Callable[[str], list[str]]:
    """A function that says what is left of a ring in /dev/shm, and among this process's descriptors
    of any ring: those without a name have lost it, or have not got it yet."""
    earlier = nameless()  # what earlier tests have left to the garbage collector

    def traces(name: str) -> list[str]:
        own = [file for file in open_files().values() if f"gpuring.{name}" in file]
        left = [*own, *(nameless() - earlier)]
        return segments_of(name) + [f"descriptor of {file}" for file in left]

    return traces


def nameless() -> set[str]:
    """The files of rings that this process has open and that have no name."""
    return {file for file in open_files().values() if file.startswith("/dev/shm/#")}
