"""What GPU rings need: a driver, CuPy or torch that matches it, GPUs that can share.

`look` runs in a process of its own, because a broken driver hangs or kills a process that asks it.
It asks the driver itself and makes no CUDA context.  It looks at CuPy last, and does not import
torch.  The checks judge what it says.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuring.cli.measure.card import version_of
from gpuring.errors import DeviceError
from gpuring.memory import frameworks, kinds

from .finding import Finding

# CUdevice_attribute
_INTEGRATED, _COMPUTE_MODE, _HOST_REGISTER = 18, 20, 99
_STREAM_WORDS, _IPC_EVENTS, _MPS = 122, 125, 133
_VIRTUAL_MEMORY, _DESCRIPTORS, _POOL_HANDLES = 102, 103, 119
# CUcomputemode
_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}
_PROHIBITED, _EXCLUSIVE = 2, 3
# CUresult
_NO_DEVICE = 100
_FIXES = {
    35: "update the driver",
    802: "start the fabric manager: systemctl start nvidia-fabricmanager",
    803: "driver and libcuda differ: reboot or reload the kernel modules, restart containers",
}
_NO_LIBRARY = -1


@dataclass(frozen=True)
class Gpu:
    """One GPU, or MIG instance, as this process sees it; None: the driver does not say."""

    ordinal: int
    name: str
    uuid: str
    compute_mode: int | None
    integrated: bool
    host_register: bool
    stream_words: bool
    ipc_events: bool | None
    mps: bool | None
    vmm: bool
    pool: bool
    peers: tuple[int, ...]
    """Ordinals of the GPUs that it can reach."""

    @property
    def is_mig(self) -> bool:
        return " MIG " in f" {self.name} "


@dataclass(frozen=True)
class Gpus:
    """Driver, packages and GPUs."""

    status: int
    """CUresult of starting the driver; 0: it works."""
    status_name: str
    kernel_module: str
    """Version of the kernel's part of the driver, where it shows."""
    device_files: bool
    cuda: int
    """The newest CUDA version of the driver, as 13000."""
    cupy: str
    """Version; empty: it is not installed, or `cupy_error` says why it cannot be used."""
    cupy_error: str
    cupy_cuda: int
    """The CUDA runtime that CuPy has."""
    torch: str
    """Version; empty: it is not installed."""
    visible: str | None
    """CUDA_VISIBLE_DEVICES"""
    wsl: bool
    mps_directory: str | None
    """CUDA_MPS_PIPE_DIRECTORY"""
    mps_answers: bool
    """Whether a control daemon's pipe is there."""
    in_container: bool
    """Whether this process is in a pid namespace of its own."""
    gpus: tuple[Gpu, ...]


Check = Callable[[Gpus], Finding | None]


# ---- gathering ---------------------------------------------------------------------------------


def look(_pipe: Any) -> Gpus:
    """This process's GPUs.  A role for a process of its own."""
    status, name, cuda, gpus = _ask_driver()
    cupy, cupy_error, cupy_cuda = _ask_cupy(bool(gpus))
    directory = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    return Gpus(
        status=status,
        status_name=name,
        kernel_module=_kernel_module(),
        device_files=any(Path("/dev").glob("nvidia[0-9]*")),
        cuda=cuda,
        cupy=cupy,
        cupy_error=cupy_error,
        cupy_cuda=cupy_cuda,
        torch=version_of("torch"),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        wsl="microsoft" in _text("/proc/sys/kernel/osrelease").lower(),
        mps_directory=directory,
        mps_answers=Path(directory or "/tmp/nvidia-mps", "control").exists(),
        in_container=kinds.in_container(),
        gpus=gpus,
    )


def _ask_driver() -> tuple[int, str, int, tuple[Gpu, ...]]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return _NO_LIBRARY, str(error), 0, ()
    version, number = ctypes.c_int(), ctypes.c_int()
    status = int(driver.cuInit(0))
    driver.cuDriverGetVersion(ctypes.byref(version))
    if status == 0:
        status = int(driver.cuDeviceGetCount(ctypes.byref(number)))
    if status:
        return status, _name_of(driver, status), version.value, ()
    gpus = tuple(_ask_gpu(driver, ordinal, number.value) for ordinal in range(number.value))
    return 0, "", version.value, gpus


def _name_of(driver: Any, status: int) -> str:
    name = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    return (name.value or b"CUresult").decode()


def _ask_gpu(driver: Any, ordinal: int, number: int) -> Gpu:
    name, raw = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    driver.cuDeviceGetName(name, len(name), ordinal)
    driver.cuDeviceGetUuid_v2(raw, ordinal)

    def attribute(which: int) -> int | None:
        value = ctypes.c_int()
        status = driver.cuDeviceGetAttribute(ctypes.byref(value), which, ordinal)
        return None if status else value.value

    def reaches(other: int) -> bool:
        value = ctypes.c_int()
        return not driver.cuDeviceCanAccessPeer(ctypes.byref(value), ordinal, other) and bool(
            value.value
        )

    events, mps = attribute(_IPC_EVENTS), attribute(_MPS)
    return Gpu(
        ordinal=ordinal,
        name=name.value.decode(errors="replace"),
        uuid=str(uuid.UUID(bytes=raw.raw)),
        compute_mode=attribute(_COMPUTE_MODE),
        integrated=bool(attribute(_INTEGRATED)),
        host_register=bool(attribute(_HOST_REGISTER)),
        stream_words=bool(attribute(_STREAM_WORDS)),
        ipc_events=None if events is None else bool(events),
        mps=None if mps is None else bool(mps),
        vmm=bool(attribute(_VIRTUAL_MEMORY) and attribute(_DESCRIPTORS)),
        pool=bool((attribute(_POOL_HANDLES) or 0) & 1),
        peers=tuple(other for other in range(number) if other != ordinal and reaches(other)),
    )


def _ask_cupy(wanted: bool) -> tuple[str, str, int]:
    """Version, why it cannot be used, its CUDA runtime."""
    if not wanted:
        return "", "", 0
    try:
        cupy = frameworks.cupy()
        if cupy is None:
            return "", "", 0
        return str(cupy.__version__), "", int(cupy.cuda.runtime.runtimeGetVersion())
    except DeviceError as error:
        return "", str(error), 0
    except RuntimeError as error:  # CuPy's CUDARuntimeError
        return "", f"CuPy does not start ({error})", 0


def _kernel_module() -> str:
    """NVRM version: NVIDIA UNIX … Kernel Module  580.159  Release Build …"""
    words = _text("/proc/driver/nvidia/version").partition("Kernel Module")[2].split()
    return next((word for word in words if word[:1].isdigit()), "")


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text()
    return ""


# ---- checks ------------------------------------------------------------------------------------


def driver(seen: Gpus) -> Finding:
    """The first; without GPUs the only one."""
    what = "GPU driver"
    visible = f"CUDA_VISIBLE_DEVICES {'unset' if seen.visible is None else repr(seen.visible)}"
    if seen.gpus:
        module = f"{seen.kernel_module}, " if seen.kernel_module else ""
        return Finding("ok", what, f"{module}CUDA up to {_dotted(seen.cuda)}, {visible}")
    none = "no GPU: host rings only"
    if seen.status in (0, _NO_DEVICE):
        hidden = seen.visible is not None and seen.device_files
        fix = "unset CUDA_VISIBLE_DEVICES, or name a GPU that is there" if hidden else _START
        return Finding("warn", what, f"{none} (the driver finds none; {visible})", fix)
    if seen.status == _NO_LIBRARY:
        if not seen.device_files:
            return Finding("warn", what, f"{none} (no NVIDIA driver)", _START)
        fix = "install the driver's libraries (libcuda.so.1); in containers: docker run --gpus all"
        return Finding(
            "fail", what, f"there is a GPU, but not its library ({seen.status_name})", fix
        )
    fix = _FIXES.get(seen.status, "see nvidia-smi and dmesg | grep -i nvrm")
    return Finding("fail", what, f"CUDA does not start: {seen.status_name} ({seen.status})", fix)


_START = "if this machine has one: install its driver; in containers: docker run --gpus all"


def arrays(seen: Gpus) -> Finding:
    """Whose arrays slots are shown as, and whose device and stream are the current ones."""
    what, wanted = "arrays", "gpuring[cuda13]" if seen.cuda >= 13000 else "gpuring[cuda12]"
    fix = f"pip uninstall other cupy packages, then pip install '{wanted}'"
    if seen.cupy_error:
        return Finding("fail", what, seen.cupy_error, fix)
    if not seen.cupy and seen.torch and "+cpu" not in seen.torch:
        found = f"torch {seen.torch}, because CuPy is not installed: torch.from_dlpack(slot)"
        return Finding("ok", what, found)
    if not seen.cupy:
        found = (
            "neither CuPy nor torch with CUDA is installed: slots can only be copied to and from"
        )
        return Finding("warn", what, found, f"pip install '{wanted}' or 'gpuring[torch]'")
    found = f"CuPy {seen.cupy} with CUDA {_dotted(seen.cupy_cuda)}"
    if seen.cupy_cuda // 1000 > seen.cuda // 1000:
        return Finding(
            "fail", what, f"{found}, newer than the driver allows", f"{fix}; or update the driver"
        )
    return Finding("ok", what, found)


def platform(seen: Gpus) -> Finding | None:
    if not (why := _lacks_ipc(seen)):
        return None
    fix = "memory='auto' takes what is left; gpuring was not tried on such hardware"
    return Finding("warn", "platform", why, fix)


def _lacks_ipc(seen: Gpus) -> str:
    integrated = [gpu.ordinal for gpu in seen.gpus if gpu.integrated]
    if seen.wsl:
        return "WSL2 has no legacy CUDA IPC between processes"
    if integrated:
        found = f"GPU {_listed(integrated)} is integrated (Tegra, Jetson)"
        return f"{found}, and has no legacy CUDA IPC"
    return ""


def uuids(seen: Gpus) -> Finding:
    """By which processes agree on a GPU, whatever its ordinal."""
    listed = "; ".join(f"{gpu.ordinal}: {gpu.name}, GPU-{gpu.uuid}" for gpu in seen.gpus)
    return Finding("ok", "GPUs", listed)


def compute_mode(seen: Gpus) -> Finding:
    what, fix = "compute mode", "nvidia-smi -c DEFAULT, or run the processes under MPS"
    bad = [
        gpu
        for gpu in seen.gpus
        if gpu.compute_mode == _PROHIBITED or (gpu.compute_mode == _EXCLUSIVE and not gpu.mps)
    ]
    if bad:
        listed = ", ".join(f"GPU {gpu.ordinal}: {_MODES[gpu.compute_mode or 0]}" for gpu in bad)
        return Finding("fail", what, f"{listed}: two processes cannot use it at once", fix)
    modes = {_MODES.get(gpu.compute_mode or 0, "unknown") for gpu in seen.gpus}
    return Finding("ok", what, ", ".join(sorted(modes)))


def mps(seen: Gpus) -> Finding:
    what = "MPS"
    on = [gpu.ordinal for gpu in seen.gpus if gpu.mps]
    if on or (seen.mps_answers and all(gpu.mps is None for gpu in seen.gpus)):
        found = (
            "on: processes use the GPU at the same time, so a hand-over is short. But a client "
            "that is killed with GPU work pending takes all other clients with it"
        )
        return Finding("ok", what, found)
    if seen.mps_directory and not seen.mps_answers:
        found = f"CUDA_MPS_PIPE_DIRECTORY is {seen.mps_directory}, but no daemon answers there"
        return Finding("warn", what, found, "nvidia-cuda-mps-control -d, or unset the variable")
    found = "off: each hand-over between processes waits for the GPU to switch between them"
    return Finding("ok", what, found)


def mig(seen: Gpus) -> Finding:
    what = "MIG"
    instances = [gpu.ordinal for gpu in seen.gpus if gpu.is_mig]
    if not instances:
        return Finding("ok", what, "no instances among these GPUs")
    found = f"GPU {_listed(instances)} is a MIG instance; no other instance can use its rings"
    fix = "give all processes of a ring the same CUDA_VISIBLE_DEVICES=MIG-…"
    return Finding("warn", what, found, fix)


def memory(seen: Gpus) -> Finding:
    """The kinds of memory, and which of them memory="auto" takes."""
    what, without = "memory", [gpu.ordinal for gpu in seen.gpus if not gpu.vmm]
    lacking = {"ipc": _lacks_ipc(seen), "vmm": without and f"GPU {_listed(without)} has no vmm"}
    kind, why = kinds.auto(seen.in_container, lambda kind: (not lacking[kind], str(lacking[kind])))
    pool = "" if all(gpu.pool for gpu in seen.gpus) else " (pool not on all GPUs)"
    if kind == "ipc" and seen.in_container:
        fix = "run all processes of a ring in one pid namespace: docker run --pid=host"
        return Finding("warn", what, f"memory='auto' takes ipc: {why}", fix)
    return Finding("ok", what, f"memory='auto' takes {kind}, because {why}{pool}")


def timeline(seen: Gpus) -> Finding:
    what = "timeline"
    without = [g.ordinal for g in seen.gpus if not (g.stream_words and g.host_register)]
    if without:
        found = f"streams of GPU {_listed(without)} cannot wait for words in host memory"
        fix = "nothing to do: sync='auto' takes events with gate='host' there"
        return Finding("warn", what, found, fix)
    return Finding("ok", what, "streams can write words of the header and wait for them")


def events(seen: Gpus) -> Finding | None:
    without = [gpu.ordinal for gpu in seen.gpus if gpu.ipc_events is False]
    if not without:
        return None
    found = f"GPU {_listed(without)} cannot share events between processes"
    return Finding("warn", "events", found, "use sync='timeline', which sync='auto' prefers")


def peer_access(seen: Gpus) -> Finding | None:
    if len(seen.gpus) < 2:
        return None
    what, ordinals = "peer access", {gpu.ordinal for gpu in seen.gpus}
    apart = [
        f"{gpu.ordinal}→{_listed(sorted(missing))}"
        for gpu in seen.gpus
        if (missing := ordinals - {gpu.ordinal} - set(gpu.peers))
    ]
    if apart:
        found = f"none for {'; '.join(apart)}: a ring on one GPU cannot be read from the other"
        fix = (
            "attach under the ring's own GPU, attach(name, device=…), and take slot.copy_to(out) "
            "to another one; PCIe ACS or the IOMMU may prevent access"
        )
        return Finding("warn", what, found, fix)
    return Finding("ok", what, f"all {len(ordinals)} GPUs reach each other")


def _listed(ordinals: list[int]) -> str:
    return ", ".join(map(str, ordinals))


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


CHECKS: tuple[Check, ...] = (
    *(arrays, platform, uuids, compute_mode, mps, mig, memory, timeline, events, peer_access),
)
"""Where there is a GPU, after `driver`."""
