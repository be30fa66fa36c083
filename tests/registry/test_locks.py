"""The bytes of a header that processes hold locked: each has one meaning."""

from __future__ import annotations

import os

import gpuring
from gpuring.native import (
    NAME_BYTE,
    SETTLING_BYTE,
    File,
    Tracer,
    in_use,
    lock,
    name_is_locked,
    unlock,
)
from gpuring.registry import segment
from tests.helpers.rings import small_ring


def header(name: str) -> File:
    return File(segment.path_of(segment.header_name(name)), os.O_RDWR)


def test_who_traces_a_ring_keeps_nobody_from_settling_what_is_owed(name):
    with small_ring(name), header(name) as file, header(name) as another:
        tracer = Tracer(file.fd)
        assert lock(another.fd, SETTLING_BYTE)
        tracer.off()


def test_a_lock_of_another_process_is_seen_and_ends_with_its_descriptor(name):
    with small_ring(name), header(name) as file:
        with header(name) as another:
            assert lock(another.fd, NAME_BYTE)
            assert name_is_locked(file.fd)
            assert not lock(file.fd, NAME_BYTE)
            unlock(another.fd, NAME_BYTE)
            assert not name_is_locked(file.fd)
            assert lock(another.fd, NAME_BYTE)
        assert lock(file.fd, NAME_BYTE)


def test_a_lock_on_the_name_does_not_count_as_using_the_ring(name):
    with small_ring(name) as ring, header(name) as file:
        assert in_use(file.fd)
        ring._header.disown()  # as if its process were dead
        with header(name) as another:
            assert lock(another.fd, NAME_BYTE)
            assert lock(another.fd, SETTLING_BYTE)
            assert not in_use(file.fd)
    gpuring.clean()
