"""What bridges to other hosts need: pyzmq, and for RDMA a network card and NIXL.

`look` runs in a process of its own, because NIXL is a large native library.  The checks judge what
it says.  Bridges are optional, so nothing that is missing is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuring.bridge.engines.contract import EngineError
from gpuring.bridge.engines.nixl import agent, rdma_devices
from gpuring.cli.measure.card import version_of

from .finding import Finding


@dataclass(frozen=True)
class Network:
    """What a bridge would find here."""

    zmq: str = ""
    """The version of pyzmq.  Empty: it is not installed."""
    nixl: str = ""
    """The package of NIXL and its version.  Empty: it is not installed."""
    nixl_error: str = ""
    """Why NIXL is installed and cannot be used.  Empty: nothing is wrong."""
    back_ends: tuple[str, ...] = ()
    """The plug-ins that NIXL has."""
    ports: tuple[rdma_devices.Nic, ...] = ()
    gpu_direct: str = ""
    """The kernel module through which network cards reach GPU memory.  Empty: none is loaded."""
    gpus: bool = False
    """Whether there are devices of NVIDIA GPUs."""

    @property
    def rdma(self) -> tuple[rdma_devices.Nic, ...]:
        """The ports that can be used."""
        return tuple(port for port in self.ports if port.active)


Check = Callable[[Network], Finding | None]


def look(_pipe: Any, gpus: bool) -> Network:
    """This machine.  A role for a process of its own."""
    name, error, back_ends = _ask_nixl()
    return Network(
        zmq=version_of("pyzmq"),
        nixl=f"{name} {version_of(name)}".strip() if name else "",
        nixl_error=error,
        back_ends=back_ends,
        ports=rdma_devices.look(),
        gpu_direct=rdma_devices.gpu_direct(),
        gpus=gpus,
    )


def _ask_nixl() -> tuple[str, str, tuple[str, ...]]:
    """The package's name, why it cannot be used, and its back ends."""
    try:
        package = agent.package()
    except EngineError as error:
        return "", "" if "not installed" in str(error) else str(error), ()
    name = str(package.__name__)
    try:
        started = package.nixl_agent("gpuring-doctor", package.nixl_agent_config(backends=[]))
        return name, "", tuple(sorted(started.get_plugin_list()))
    except Exception as error:
        return name, f"{name} does not start ({error})", ()


# ---- checks ------------------------------------------------------------------------------------


def bridge(seen: Network) -> Finding:
    """Which engine a bridge from or to this machine would take."""
    what = "bridge"
    if not seen.zmq:
        found = "pyzmq is not installed: gpuring bridge cannot carry rings to other hosts"
        return Finding("skip", what, found, "pip install 'gpuring[bridge]'")
    plain = f"ZeroMQ over TCP (pyzmq {seen.zmq})"
    if seen.nixl_error:
        fix = "pip install --force-reinstall 'gpuring[rdma13]', or 'gpuring[rdma12]' for CUDA 12"
        return Finding("warn", what, f"{plain}, because {seen.nixl_error}", fix)
    if not seen.rdma:
        return Finding("ok", what, f"{plain}: there is no active RDMA device")
    if not seen.nixl:
        found = f"{plain}, though there is RDMA: NIXL is not installed"
        return Finding("warn", what, found, "pip install 'gpuring[rdma13]' or 'gpuring[rdma12]'")
    if "UCX" not in seen.back_ends:
        listed = ", ".join(seen.back_ends) or "none"
        fix = "install NIXL from its wheels, which have UCX"
        return Finding("warn", what, f"{plain}: NIXL has no UCX (its back ends: {listed})", fix)
    found = f"NIXL over RDMA where the other side has both, else {plain}; {seen.nixl}"
    return Finding("ok", what, f"{found} with {', '.join(seen.back_ends)}")


def rdma(seen: Network) -> Finding | None:
    """The network cards.  Nothing where there are none."""
    if not seen.ports:
        return None
    what, down = "RDMA", ", ".join(str(port) for port in seen.ports if not port.active)
    if not seen.rdma:
        return Finding("warn", what, f"no port is active: {down}", "see rdma link, or ibstat")
    found = ", ".join(map(str, seen.rdma))
    return Finding("ok", what, f"{found}{f'; not active: {down}' if down else ''}")


def gpu_direct(seen: Network) -> Finding | None:
    """Whether network cards reach GPU memory.  Nothing where there is no card or no GPU."""
    if not (seen.rdma and seen.gpus):
        return None
    what = "GPU-direct"
    if seen.gpu_direct:
        return Finding("ok", what, f"the kernel module {seen.gpu_direct} is loaded")
    found = "nvidia_peermem is not loaded, so only drivers that share dma-buf reach GPU memory"
    return Finding("warn", what, found, "modprobe nvidia_peermem")


CHECKS: tuple[Check, ...] = (bridge, rdma, gpu_direct)
