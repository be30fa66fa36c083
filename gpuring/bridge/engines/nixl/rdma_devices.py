"""The RDMA devices of this machine, as the kernel shows them in /sys."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

SYS = Path("/sys")


@dataclass(frozen=True)
class Nic:
    """One port of an RDMA device (InfiniBand or RoCE)."""

    device: str
    port: int
    active: bool
    link: str
    """ "InfiniBand" or "Ethernet" (RoCE)."""
    rate: str
    """As the kernel says it: "400 Gb/sec (4X NDR)"."""

    def __str__(self) -> str:
        return f"{self.device}:{self.port} ({self.link}, {self.rate})"


def look(root: Path = SYS) -> tuple[Nic, ...]:
    """All ports of all RDMA devices that this process can see.  Empty where there are none."""
    ports = sorted((root / "class/infiniband").glob("*/ports/*"))
    return tuple(
        Nic(
            device=port.parent.parent.name,
            port=int(port.name),
            active="ACTIVE" in _text(port / "state"),
            link=_text(port / "link_layer") or "unknown link",
            rate=_text(port / "rate") or "unknown rate",
        )
        for port in ports
        if port.name.isdecimal()
    )


def gpu_direct(root: Path = SYS) -> str:
    """The kernel module through which RDMA devices reach GPU memory.  Empty if none is loaded.

    Without one, newer drivers can still share GPU memory with RDMA devices as dma-buf.
    """
    modules = ("nvidia_peermem", "nv_peer_mem")
    return next((name for name in modules if (root / "module" / name).is_dir()), "")


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
