"""GPUs that are made up (fake_gpu.py), in place of the driver, with CuPy or with torch alone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gpuring.memory import cuda, cuda_ipc, cuda_pool, cuda_vmm, driver, frameworks
from gpuring.ring import ordering
from tests.memory.fake_gpu import UUIDS, Gpu


@pytest.fixture(params=["cupy", "torch"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    made = Gpu()
    torch = made.torch()
    monkeypatch.setitem(sys.modules, "cupy", made.cupy() if request.param == "cupy" else None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._C", torch._C)
    for module in (cuda, cuda_ipc, cuda_pool, cuda_vmm, ordering):
        asked = SimpleNamespace(uuid=UUIDS.__getitem__, attribute=lambda *_: 0)
        monkeypatch.setattr(module, "Driver", lambda asked=asked: asked)
    monkeypatch.setattr(driver, "_library", lambda: made)
    driver._context.cache_clear()
    frameworks.cupy.cache_clear()
    frameworks.cupy()
    monkeypatch.setattr(cuda, "timeline_supported", lambda _: (not made.lacks, made.lacks))
    yield made
    cuda._owned.clear()
    gc.collect()
    driver._context.cache_clear()
    frameworks.cupy.cache_clear()
