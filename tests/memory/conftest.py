"""Puts fake GPUs (fake_gpu.py) in the place of the driver, with CuPy or with torch alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from gpuring.memory import cuda, frameworks
from tests.memory.fake_gpu import Gpu, forget


@pytest.fixture(params=["cupy", "torch"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    made = Gpu()
    made.put_in_place(monkeypatch)
    torch = made.torch()
    monkeypatch.setitem(sys.modules, "cupy", made.cupy() if request.param == "cupy" else None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._C", torch._C)
    frameworks.cupy()
    monkeypatch.setattr(cuda, "timeline_supported", lambda _: (not made.lacks, made.lacks))
    yield made
    cuda._owned.clear()
    forget()
