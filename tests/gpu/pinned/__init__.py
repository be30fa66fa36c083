"""Pinned rings: processes with and without a GPU in one ring, whose slots are host memory.

The children that stand for a camera or a recorder use the CPU alone, and never load CUDA.
"""

from __future__ import annotations

import numpy as np

import gpuring
from tests.helpers.processes import open_files

WORDS = 1 << 14
SLOTS = 4
TAKES_S = 60


def make(name, **options):
    more = {"slots": SLOTS, "shape": (WORDS,), "dtype": "u8", "memory": "pinned"}
    return gpuring.create(name, **(more | options))


def words(seq, n=WORDS):
    """The words that kernels.stamp writes."""
    first = seq * 0x9E3779B97F4A7C15 % 2**64
    return np.uint64(first) + np.arange(n, dtype="u8")


def put(producer, frames=1):
    """Publishes frames that the CPU writes.  Returns their sequences."""
    seqs = []
    for _ in range(frames):
        with producer.claim(TAKES_S) as slot:
            slot.array[...] = words(slot.seq)
        seqs.append(slot.seq)
    return seqs


def has_cuda():
    """Whether this process has opened a GPU.  Its parent may have loaded CuPy, and so libcuda."""
    return any("nvidia" in path for path in open_files().values())
