"""Which library says what the current device and stream are, and what copies ask of the driver.

The libraries and the driver are made up.  tests/gpu/test_gpu_without_cupy.py has real ones.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuring.arrays import copying, streams
from gpuring.errors import DeviceError
from gpuring.memory import frameworks, gpus
from gpuring.native.gpu import Event, Stream
from tests.memory.fake_gpu import Gpu, forget

OF_CUPY, OF_TORCH, OF_DRIVER = 0x10, 0x20, 0


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """The fake driver with GPU 1 current, and no library."""
    made = Gpu()
    made.stack = [1]
    monkeypatch.setitem(sys.modules, "cupy", None)
    for name in ("torch", "torch._C"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    made.put_in_place(monkeypatch)
    yield made
    forget()


def add_cupy(monkeypatch: pytest.MonkeyPatch, **runtime: Any) -> None:
    stream = SimpleNamespace(ptr=OF_CUPY)
    asked = SimpleNamespace(**{"is_hip": False, "getDevice": lambda: 0} | runtime)
    cuda = SimpleNamespace(runtime=asked, get_current_stream=lambda: stream)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    frameworks.cupy.cache_clear()


def add_torch(monkeypatch: pytest.MonkeyPatch, **compiled: Any) -> None:
    usual = {
        "_cuda_getDevice": lambda: 0,
        "_cuda_getCurrentRawStream": lambda device: OF_TORCH + device,
    }
    cuda = SimpleNamespace(is_initialized=lambda: compiled.pop("initialized", True))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "torch._C", SimpleNamespace(**usual | compiled))


def test_cupy_says_what_is_current_also_where_torch_is(driven, monkeypatch):
    add_cupy(monkeypatch)
    add_torch(monkeypatch, _cuda_getDevice=lambda: 1)
    assert frameworks.current_device() == 0
    current, capsule = frameworks.current_stream(1)
    assert (current().ptr, capsule) == (OF_CUPY, None)
    assert streams.current(1) == OF_CUPY


def test_torch_says_it_where_there_is_no_cupy_also_if_it_comes_later(driven, monkeypatch):
    current, _ = frameworks.current_stream(1)
    assert (frameworks.current_device(), current()) == (1, OF_DRIVER)
    add_torch(monkeypatch)
    assert (frameworks.current_device(), current()) == (0, OF_TORCH + 1)


def test_a_torch_that_has_no_cuda_or_does_not_use_it_says_nothing(driven, monkeypatch):
    add_torch(monkeypatch, initialized=False)
    assert frameworks.current_device() == 1
    monkeypatch.setitem(sys.modules, "torch._C", SimpleNamespace())
    assert (frameworks.current_device(), streams.current(0)) == (1, OF_DRIVER)


def test_without_a_context_the_current_gpu_is_the_first(driven):
    driven.CALLS = Gpu.CALLS | {"cuCtxGetDevice": lambda *_: 201}
    assert gpus.current_device() is None
    assert frameworks.current_device() == 0


def cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"{name}: libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", missing)


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (cannot_be_imported, "CuPy cannot be imported .*cannot open shared object"),
        (lambda patch: add_cupy(patch, is_hip=True), "built for ROCm"),
        (lambda patch: add_cupy(patch, getDevice=refuses), "CuPy does not start .*insufficient"),
    ],
)
def test_a_cupy_that_is_broken_is_an_error_and_torch_does_not_take_its_place(
    driven, monkeypatch, breaks, says
):
    add_torch(monkeypatch)
    breaks(monkeypatch)
    with pytest.raises(DeviceError, match=says):
        frameworks.current_device()


def refuses() -> int:
    raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")


def test_the_context_before_is_current_again_also_after_an_error(driven):
    within = []

    def fails() -> None:
        within.append(list(driven.stack))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), gpus.current(0):
        fails()
    assert within == [[1, 0]]
    assert driven.stack == [1]


def test_rows_at_a_pitch_are_copied_as_cuda_h_has_it(driven):
    """CUDA_MEMCPY2D has eight words for each side, and the driver reads the device pointers among
    them."""
    seen: list[tuple[int, ...]] = []

    def copies(_gpu: Gpu, what: int, stream: int) -> None:
        seen.append((*(ctypes.c_uint64 * 16).from_address(what), stream))

    driven.CALLS = Gpu.CALLS | {"cuMemcpy2DAsync_v2": copies}
    source = copying._Other(0x5000, (2, 3), (32, 4), np.dtype("f4"), None, 0, None)
    frame = frameworks.Span(0x9000, (2, 3), np.dtype("f4"), 0, None)
    copying._enqueue(frame, source, 0x77, lambda *_: None, into_slot=True)
    copying._enqueue(frame, source, 0x77, lambda *_: None, into_slot=False)
    unified = 4
    there = (0, 0, unified, 0, 0x5000, 0, 32)
    slot = (0, 0, unified, 0, 0x9000, 0, 12)
    assert seen == [(*there, *slot, 12, 2, 0x77), (*slot, *there, 12, 2, 0x77)]
    copying._kept.clear()


def test_events_and_streams_are_given_back_on_their_device(driven):
    made = [Event(gpus.gpu(0)), Stream(gpus.gpu(0))]
    driven.called.clear()
    made.clear()
    gc.collect()
    gone = {each for each in driven.called if "Destroy" in each[0]}
    assert gone == {("cuEventDestroy_v2", 0), ("cuStreamDestroy_v2", 0)}
    assert driven.stack == [1]
