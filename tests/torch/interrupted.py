"""Signals that come while a loop loads."""

from __future__ import annotations

import multiprocessing.connection
import multiprocessing.queues
from pathlib import Path

import pytest
import torch.utils.data

from gpuring.torch import DataLoader
from tests.helpers.interrupted import Signal


class SignalInTorch(Signal):
    """A signal in the code of the package, of torch's loader, or of the queues."""

    FILES = (
        *Signal.FILES,
        str(Path(torch.utils.data.__file__).parent),
        multiprocessing.queues.__file__,
        multiprocessing.connection.__file__,
    )


EVERY = [[k, k + 1] for k in range(0, 12, 2)]


def check_interrupted(interrupt: SignalInTorch, loading: DataLoader[object], at: int) -> None:
    """Interrupts the call for batch `at` of a new loop, and goes on with it."""
    batches = iter(loading)
    seen = [next(batches)[1].tolist() for _ in range(at)]
    with interrupt:
        seen.append(next(batches)[1].tolist())
    if batches.broken:
        with pytest.raises(RuntimeError, match="was interrupted"):
            next(batches)
        return
    seen += [k.tolist() for _, k in batches]
    assert seen == EVERY, interrupt.where
