"""Whose context is current in a thread: also after a Ctrl-C, and where none was before.

The driver is made up (fake_gpu.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gpuring.arrays import copying
from gpuring.memory import gpus
from gpuring.native.gpu import Event, Gpu
from tests.helpers import raw_verbs
from tests.helpers.interrupted import interrupts
from tests.memory import fake_gpu
from tests.memory.fake_gpu import GpuArray


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_gpu.Gpu]:
    """The fake driver with GPU 1 current."""
    made = fake_gpu.Gpu()
    made.stack = [1]
    made.put_in_place(monkeypatch)
    yield made
    fake_gpu.forget()


def test_after_a_ctrl_c_at_any_place_the_context_before_is_current_again(driven):
    for interrupt in interrupts():
        with interrupt:
            enters(gpus.gpu(0))
        assert driven.stack == [1], interrupt.where


def enters(gpu: Gpu) -> None:
    with gpu.current():
        pass


def test_a_block_that_is_dropped_without_its_end_ends(driven):
    """From 3.14 on Python looks for signals between `__enter__` and the block."""
    block = gpus.gpu(0).current()
    block.__enter__()
    assert driven.stack == [1, 0]
    del block
    assert driven.stack == [1]


CALLS: dict[str, Callable[[Gpu], object]] = {
    "a block": enters,
    "copy": lambda gpu: gpu.copy(0, 0, 0, 0),
    "rows": lambda gpu: gpu.copy_rows(0, 0, 0, 0, 0, 0, 0),
    "fill": lambda gpu: gpu.fill(0, 0, 0, 0),
    "synchronize": lambda gpu: gpu.synchronize(0),
    "finish": lambda gpu: gpu.finish(),
    "device_of": lambda gpu: gpu.device_of(0),
    "event": Event,
}


@pytest.mark.parametrize("what", CALLS)
def test_a_ctrl_c_during_the_push_of_a_context_is_followed_by_its_pop(what):
    gpu = Gpu(0, raw_verbs.interrupting_driver())
    with pytest.raises(KeyboardInterrupt):
        CALLS[what](gpu)
    assert raw_verbs.pushed_contexts() == 0


def test_the_gpu_of_an_array_can_be_asked_for_where_no_context_is_current(driven):
    def asked(gpu: fake_gpu.Gpu, out: int, *_: object) -> int:
        fake_gpu.put(out, ctypes.c_int, 1)
        return 0 if len(gpu.stack) > 1 else 201  # CUDA_ERROR_INVALID_CONTEXT

    driven.CALLS = driven.CALLS | {"cuPointerGetAttribute": asked}
    assert copying._gpu_of(GpuArray(np.zeros(1))) == 1
    assert driven.stack == [1]
