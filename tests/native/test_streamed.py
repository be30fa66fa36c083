"""Copies past the caches: any bytes from anywhere to anywhere, and none beside them."""

from __future__ import annotations

import numpy as np
import pytest

from gpuring.native.streamed import gather


@pytest.mark.parametrize("nbytes", [0, 1, 15, 63, 64, 65, 127, 128, 1000, 4096, 100_003])
@pytest.mark.parametrize("at", [0, 1, 16, 63])
def test_pieces_lie_one_behind_the_other(nbytes, at):
    random = np.random.default_rng(nbytes + at)
    sources = [random.integers(1, 256, nbytes + 3, "u1")[3:] for _ in range(3)]
    memory = np.zeros(64 + at + 3 * nbytes + 64, "u1")
    to = 64 + at
    gather(memory.ctypes.data + to, [each.ctypes.data for each in sources], nbytes)
    assert (memory[to : to + 3 * nbytes] == np.concatenate(sources)).all()
    assert not memory[:to].any()
    assert not memory[to + 3 * nbytes :].any()
