"""Where NIXL can be used: RDMA devices, networks and GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuring.bridge.engines import nixl
from gpuring.bridge.engines.contract import EngineError
from gpuring.bridge.engines.nixl import bounce_buffer, rdma_devices
from tests.bridge.bridge_engines import slab


def test_nixl_suits_one_host_and_rdma_and_no_plain_network():
    memory = slab(2, 4096)
    one = {"host": "a", "spaces": [1, 2], "rdma": []}
    assert nixl.suits(one, one, memory) == (True, "both sides are on one host")
    apart = nixl.suits(one | {"spaces": [1, 3]}, one, memory)
    assert apart == (False, "both sides are on one host, but not in the same namespaces")
    other = {"host": "b", "spaces": [1, 2], "rdma": ["mlx5_0:1 (InfiniBand, 400 Gb/sec)"]}
    assert nixl.suits(one, other, memory) == (
        False,
        "the near side has no RDMA device that is active",
    )
    assert nixl.suits(other, one, memory)[0] is False
    assert nixl.suits(other | {"host": "c"}, other, memory) == (
        True,
        "both sides have RDMA: mlx5_0:1 (InfiniBand, 400 Gb/sec)",
    )
    assert nixl.suits({}, other, memory)[0] is False, "what comes over the network may be anything"


def test_nixl_suits_a_gpu_if_there_is_memory_for_a_bounce_buffer(monkeypatch):
    """Here CUDA shares no memory with other processes, like that of an importer's worker."""
    one: dict[str, Any] = {"host": "a", "spaces": [1, 2], "rdma": []}
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(bounce_buffer, "reserve", lambda gpu, nbytes: asked.append((gpu, nbytes)))
    for kind in ("ipc", "vmm", "pool"):
        memory = replace(slab(8, 4096, window=3), memory=kind, gpu=5)
        suits = nixl.suits(one, one, memory)
        assert suits == (True, "both sides are on one host, with a bounce buffer of 4 slots")
        assert asked.pop() == (5, 4 * 4096)
        assert not nixl.suits(one, one | {"host": "b"}, memory)[0]
        assert not asked, "there is memory where none is needed"

    def refuse(gpu: int, nbytes: int) -> None:
        raise EngineError("there is no memory")

    monkeypatch.setattr(bounce_buffer, "reserve", refuse)
    assert nixl.suits(one, one, memory) == (False, "there is no memory")


def test_rdma_devices_are_read_from_sys(tmp_path):
    assert rdma_devices.look(tmp_path) == ()
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (port / "link_layer").write_text("InfiniBand\n")
    (port.parent / "2").mkdir()
    first, second = rdma_devices.look(tmp_path)
    assert str(first) == "mlx5_0:1 (InfiniBand, 400 Gb/sec (4X NDR))"
    assert first.active
    assert not second.active
    assert rdma_devices.gpu_direct(tmp_path) == ""
    (tmp_path / "module/nvidia_peermem").mkdir(parents=True)
    assert rdma_devices.gpu_direct(tmp_path) == "nvidia_peermem"
