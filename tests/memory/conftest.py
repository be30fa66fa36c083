"""GPUs that are made up (fake_gpu.py), in place of CuPy and of the driver."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gpuring.memory import cuda, cuda_ipc, cuda_pool, cuda_vmm, driver
from gpuring.ring import ordering
from tests.memory.fake_gpu import UUIDS, Gpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    made = Gpu()
    monkeypatch.setitem(sys.modules, "cupy", made.cupy())
    for module in (cuda, cuda_ipc, cuda_pool, cuda_vmm, ordering):
        monkeypatch.setattr(module, "Driver", lambda: SimpleNamespace(uuid=UUIDS.__getitem__))
    for name in (
        *("granularity", "allocate", "map_memory", "unmap_memory"),
        *("allocate_in_pool", "import_pool", "let_reach_pool", "free_in_pool"),
        *("register", "unregister"),
    ):
        monkeypatch.setattr(driver, name, getattr(made, name))
    monkeypatch.setattr(cuda, "timeline_supported", lambda _: (not made.lacks, made.lacks))
    yield made
    cuda._owned.clear()
    gc.collect()
