"""What a header says of its tracing, and a tracer for tests."""

from __future__ import annotations

import os

import numpy as np

from gpuring.native import File, Tracer
from gpuring.native.tracer import KINDS
from gpuring.registry import segment
from tests.helpers.layout import FIELDS


def header(name: str, flags: int = os.O_RDONLY) -> File:
    return File(segment.path_of(segment.header_name(name)), flags)


def tracer_of(name: str) -> Tracer:
    with header(name, os.O_RDWR) as file:
        return Tracer(file.fd)


def until_ns(name: str) -> int:
    """When tracing of the ring ends.  0: it is off."""
    with header(name) as file:
        raw = os.pread(file.fd, 8, FIELDS["head", "traced_until_ns"].offset)
    return int.from_bytes(raw, "little")


def nbytes(name: str) -> int:
    with header(name) as file:
        return os.fstat(file.fd).st_size


def events(tracer, number):
    """(kind, first word of data) of each event of a peer."""
    rows = np.frombuffer(tracer.read(number), np.uint64).reshape(-1, 8)
    return [(KINDS[int(row[2]) & 0xFFFFFFFF], int(row[4])) for row in rows if row[0]]
