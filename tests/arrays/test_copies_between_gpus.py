"""Copies of arrays that are on another GPU than the current one, as torch and CuPy give them.

The driver and the libraries are made up.  tests/gpu/test_two_gpus.py has real ones.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from gpuring.arrays import copying, streams, tensors
from gpuring.memory import frameworks
from gpuring.native import dlpack
from gpuring.slot_layout import ARRAY, Field
from tests.memory.fake_gpu import Gpu, forget

FRAME = np.arange(24, dtype="i4").reshape(4, 6)
FIELD = Field(ARRAY, FRAME.shape, FRAME.dtype, 0)
KIND = (0, 32)
HOME, OTHER = 0, 1
"""The GPU that is current, and the one of the arrays."""


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    made = Gpu()
    made.stack = [HOME]
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(copying, "_kept", [])
    made.put_in_place(monkeypatch)
    yield made
    forget()


class Torch:
    """What torch takes for the current GPU.  `remembered`: a GPU that was chosen in torch, and on
    which there is no context yet.  The driver does not know of it."""

    def __init__(self, driver: Gpu, remembered: int | None) -> None:
        self.driver, self.remembered = driver, remembered

    def current(self) -> int:
        return self.driver.device if self.remembered is None else self.remembered

    @contextlib.contextmanager
    def device(self, number: int) -> Iterator[None]:
        before, remembered = self.driver.device, self.remembered
        self.driver.stack[-1], self.remembered = number, None
        yield
        self.remembered = remembered
        if remembered is None:
            self.driver.stack[-1] = before

    @contextlib.contextmanager
    def stream(self, gpu: int) -> Iterator[None]:
        """A stream that is not of the current GPU makes a context on it in the end."""
        before = self.current()
        yield
        if before != gpu:
            self.driver.stack[-1], self.remembered = before, None


class Array:
    """An array on GPU OTHER.  Its memory is the host's."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.DL_CUDA, OTHER

    def __dlpack__(self, *, stream: int, max_version: tuple[int, int]) -> object:
        at = self.values.ctypes.data
        return dlpack.dlpack_export(
            self.values, at, self.__dlpack_device__(), self.values.shape, KIND, 0, True
        )


@pytest.fixture(params=[None, HOME], ids=["told", "remembered"])
def torch(request: pytest.FixtureRequest, driven: Gpu, monkeypatch: pytest.MonkeyPatch) -> Torch:
    made = Torch(driven, request.param)
    if request.param is not None:
        driven.stack = [OTHER]

    class Tensor(Array):
        def __dlpack__(self, **options: object) -> object:
            if made.current() != OTHER:
                raise BufferError(f"current device: {made.current()}")
            if options["stream"] == streams.PER_THREAD:
                raise BufferError("per-thread default stream is not supported.")
            return super().__dlpack__(**options)

    def external(raw: int, device: int) -> int:
        assert raw, "torch would make a new stream"
        return device

    cuda = SimpleNamespace(
        device=made.device, is_initialized=lambda: True, stream=made.stream,
        ExternalStream=external, default_stream=lambda device: device,
    )  # fmt: skip
    found = SimpleNamespace(
        cuda=cuda, Tensor=Tensor, version=SimpleNamespace(cuda="13.0"), int32="int32",
        empty=lambda shape, dtype, device: (shape, dtype, device),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", found)
    compiled = SimpleNamespace(
        _cuda_getDevice=made.current, _cuda_getCurrentRawStream=lambda device: 0
    )
    monkeypatch.setitem(sys.modules, "torch._C", compiled)
    return made


@pytest.mark.parametrize("on", [None, 0x77, streams.PER_THREAD], ids=["host", "gpu", "per-thread"])
def test_tensors_of_another_gpu_are_copied_and_torch_has_the_same_gpu_afterwards(torch, on):
    """`on`: the stream of the copy.  None: the frame is in host memory."""
    before = torch.current(), list(torch.driver.stack)
    tensor = sys.modules["torch"].Tensor
    slot, out = np.zeros_like(FRAME), np.zeros_like(FRAME)
    frame = frameworks.Span(slot.ctypes.data, FRAME.shape, FRAME.dtype, HOME, None) if on else slot
    options = {"ring": "cam0", "stream": on, "order": lambda *_: None}
    assert copying.copy_into(frame, FIELD, tensor(FRAME), **options)
    assert (slot == FRAME).all()
    copying.copy_out(frame, FIELD, tensor(out), **options)
    assert (out == FRAME).all()
    assert (torch.current(), torch.driver.stack) == before


def test_copies_go_directly_between_gpus_that_can_reach_each_other(torch):
    slot = np.zeros_like(FRAME)
    frame = frameworks.Span(slot.ctypes.data, FRAME.shape, FRAME.dtype, HOME, None)
    for _ in range(2):
        copying.copy_into(
            frame,
            FIELD,
            sys.modules["torch"].Tensor(FRAME),
            ring="cam0",
            stream=0x77,
            order=lambda *_: None,
        )
    assert torch.driver.reached == [HOME]  # once, while HOME was current


@pytest.mark.parametrize("on", [0, 0x77], ids=["default", "stream"])
def test_a_tensor_is_made_on_another_gpu_and_torch_has_the_same_gpu_afterwards(torch, on):
    before = torch.current(), list(torch.driver.stack)
    assert tensors.empty((4, 6), FIELD, OTHER, on) == ((4, 6), "int32", f"cuda:{OTHER}")
    assert (torch.current(), torch.driver.stack) == before


def test_an_array_is_asked_for_where_its_gpu_is_current(driven):
    """CuPy orders the stream behind its own current stream of the current GPU."""
    asked = []

    class OfCuPy(Array):
        def __dlpack__(self, **options: object) -> object:
            asked.append(driven.device)
            return super().__dlpack__(**options)

    copying.memory_of(OfCuPy(FRAME))
    assert asked == [OTHER]
    assert driven.device == HOME


def test_cupys_stream_of_another_gpu_is_that_of_this_gpu(driven, monkeypatch):
    cupy = driven.cupy()
    cupy.cuda.get_current_stream = lambda: SimpleNamespace(ptr=0x70 + driven.device)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    frameworks.cupy.cache_clear()
    assert [streams.current(gpu) for gpu in (HOME, OTHER)] == [0x70, 0x71]
    assert driven.device == HOME
