"""What rings need of the host, GPU or not: /dev/shm, the pid namespace, limits.

`look` gathers, the checks judge; so a test can show a check a machine that it does not have.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import gpuring
from gpuring import _core, directory, segment
from gpuring.cli.text import nbytes, printable
from gpuring.stats import RingStats

from .finding import Finding

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of Linux: the namespace of the host itself."""
DOCKERS_SHM_NBYTES = 64 << 20
LEAST_SHM_NBYTES = 1 << 20
MAX_NAMED = 10
"""Names in one finding."""
FDS_OF_A_RING = _core.MAX_PEERS + 16
"""One pidfd a peer at the most, the header, the watchdog, a few of CUDA's."""


@dataclass(frozen=True)
class Shm:
    """The file system under /dev/shm."""

    path: str
    kind: str
    """"tmpfs"; empty: there is none."""
    identity: str
    """Device and root directory of the mount: equal for processes that can meet in it."""
    nbytes: int
    free_nbytes: int
    writable: bool


@dataclass(frozen=True)
class Host:
    """This machine as this process sees it."""

    shm: Shm
    pid_namespace: int
    pidfd: str
    """Why the kernel gives no pidfd; empty: it does."""
    container: str
    """The kind of container we are in, as far as it shows; or empty."""
    limits: dict[str, int]
    """Soft limits by name; -1: none."""
    open_fds: int
    rings: tuple[RingStats, ...] = ()
    unreadable: dict[str, str] = field(default_factory=dict)
    foreign_pids: tuple[int, ...] = ()
    """Of living peers that this process cannot see."""


Check = Callable[[Host], Finding]


def look(shm: Path = segment.SHM) -> Host:
    """This machine."""
    rings, unreadable = directory.survey()
    alive = {peer.pid for one in rings for peer in one.peers if peer.alive}
    alive |= {one.creator_pid for one in rings if one.creator_alive}
    return Host(
        shm=_shm(shm),
        pid_namespace=Path("/proc/self/ns/pid").stat().st_ino,
        pidfd=_pidfd(),
        container=_container(),
        limits={
            name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
            for name in ("NOFILE", "FSIZE", "AS")
        },
        open_fds=len(list(Path("/proc/self/fd").iterdir())),
        rings=tuple(rings),
        unreadable=unreadable,
        foreign_pids=tuple(sorted(pid for pid in alive if not Path(f"/proc/{pid}").exists())),
    )


def _shm(path: Path) -> Shm:
    if not path.is_dir():
        return Shm(str(path), "", "", 0, 0, False)
    kind, identity = "", ""
    real = os.path.realpath(path)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        _, _, device, root, point, *_ = mount.split()
        if point == real:  # the last one is on top
            kind, identity = source.split()[0], f"mount {device}{root}"
    size = os.statvfs(path)
    return Shm(
        str(path),
        kind or "a directory",
        identity or f"device {path.stat().st_dev}",
        size.f_blocks * size.f_frsize,
        size.f_bavail * size.f_frsize,
        os.access(path, os.W_OK),
    )


def _pidfd() -> str:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:
        return str(error)
    return ""


def _container() -> str:
    for path, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if Path(path).exists():
            return kind
    return "kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else ""


# ---- checks ------------------------------------------------------------------------------------


def software(host: Host) -> Finding:
    python, numpy = platform.python_version(), np.__version__
    where = f" in {host.container}" if host.container else ""
    return Finding(
        "ok",
        "software",
        f"gpuring {gpuring.__version__}, Python {python}, NumPy {numpy}, "
        f"Linux {platform.release()} {platform.machine()}{where}",
    )


def shm_size(host: Host) -> Finding:
    shm, what = host.shm, f"{host.shm.path} size"
    enlarge = "docker run --shm-size=8g …, or mount -o remount,size=8g /dev/shm"
    if not shm.kind:
        return Finding("fail", what, "there is none", "mount -t tmpfs tmpfs /dev/shm")
    if not shm.writable:
        fix = "chmod 1777 /dev/shm, or run as a user who may write there"
        return Finding("fail", what, "this user may not write there", fix)
    found = f"{nbytes(shm.nbytes)}, {nbytes(shm.free_nbytes)} free"
    if shm.free_nbytes < LEAST_SHM_NBYTES:
        return Finding("fail", what, found, f"gpuring clean; rm what is stale there; {enlarge}")
    if shm.nbytes <= DOCKERS_SHM_NBYTES:
        found += ": enough for headers, little for the slots of host rings"
        return Finding("warn", what, found, enlarge)
    return Finding("ok", what, found)


def shm_identity(host: Host) -> Finding:
    """Two processes meet if this is the same for both; nobody can tell from one side."""
    shm, what = host.shm, f"{host.shm.path} is"
    if not shm.kind:
        return Finding("fail", what, "missing", "mount -t tmpfs tmpfs /dev/shm")
    found = f"{shm.kind}, {shm.identity}"
    share = "docker run --ipc=host or --ipc=container:…; Kubernetes: a shared emptyDir (Memory)"
    if shm.kind != "tmpfs":
        return Finding("warn", what, f"{found}: not memory, CUDA events may not work", share)
    if host.container and host.pid_namespace != INITIAL_PID_NAMESPACE:
        found += ": perhaps this container's own; processes elsewhere must have the same"
        return Finding("warn", what, found, f"to share rings over containers: {share}")
    return Finding("ok", what, found)


def pid_namespace(host: Host) -> Finding:
    what = "pid namespace"
    share = "docker run --pid=host or --pid=container:…; Kubernetes: shareProcessNamespace"
    if host.foreign_pids:
        pids = ", ".join(map(str, host.foreign_pids[:8]))
        found = (
            f"living peers of rings here cannot be seen (pid {pids}): they are in another one, "
            "so their deaths on GPU rings will never be cleared"
        )
        return Finding("warn", what, found, share)
    if host.pid_namespace != INITIAL_PID_NAMESPACE:
        found = f"{host.pid_namespace}, not the host's: peers of a GPU ring must all be in it"
        return Finding("warn", what, found, f"to share GPU rings over containers: {share}")
    return Finding("ok", what, f"{host.pid_namespace}, the host's own")


def pidfd(host: Host) -> Finding:
    what = "pidfd"
    if host.pidfd:
        fix = "Linux 5.3 or later, and a seccomp profile that allows pidfd_open"
        found = f"the kernel gives none ({host.pidfd}): deaths on GPU rings are never cleared"
        return Finding("fail", what, found, fix)
    return Finding("ok", what, "the kernel tells when a peer's GPU work is gone")


def open_files(host: Host) -> Finding:
    what, limit = "ulimit -n", host.limits["NOFILE"]
    if limit < 0:
        return Finding("ok", what, "no limit")
    left = limit - host.open_fds
    found = f"{limit} open files, {left} left; a ring takes up to {FDS_OF_A_RING}"
    fix = "ulimit -n 4096, or LimitNOFILE= of the service"
    if left < FDS_OF_A_RING:
        return Finding("fail", what, found, fix)
    if left < 4 * FDS_OF_A_RING:
        return Finding("warn", what, found, fix)
    return Finding("ok", what, found)


def file_size(host: Host) -> Finding:
    what, limit = "ulimit -f", host.limits["FSIZE"]
    if limit < 0:
        return Finding("ok", what, "no limit on the size of a segment")
    found = f"no segment in shared memory can have more than {nbytes(limit)}"
    return Finding("warn", what, found, "ulimit -f unlimited, or LimitFSIZE= of the service")


def address_space(host: Host) -> Finding:
    what, limit = "ulimit -v", host.limits["AS"]
    if limit < 0:
        return Finding("ok", what, "no limit on address space")
    found = f"{nbytes(limit)} of address space: CUDA reserves far more than a GPU has memory"
    return Finding("warn", what, found, "ulimit -v unlimited, or LimitAS= of the service")


def rings(host: Host) -> Finding:
    what = "rings"
    if host.unreadable:
        names = ", ".join(printable(name) for name in sorted(host.unreadable)[:MAX_NAMED])
        if len(host.unreadable) > MAX_NAMED:
            names += f" and {len(host.unreadable) - MAX_NAMED} more"
        fix = "gpuring inspect NAME says why; gpuring clean removes what no process uses"
        return Finding("warn", what, f"unreadable: {names}", fix)
    dead = [
        one.name
        for one in host.rings
        if not one.creator_alive and not any(peer.alive for peer in one.peers)
    ]
    if dead:
        return Finding("warn", what, f"all processes dead: {', '.join(dead)}", "gpuring clean")
    names = ", ".join(one.name for one in host.rings)
    return Finding("ok", what, f"{len(host.rings)} here: {names}" if names else "none here now")


CHECKS: tuple[Check, ...] = (
    *(software, shm_size, shm_identity, pid_namespace, pidfd),
    *(open_files, file_size, address_space, rings),
)
