"""What rings need of the host, GPU or not: /dev/shm, the pid namespace, limits.

`look` gathers, the checks judge; so a test can show a check a machine that it does not have.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import gpuring
from gpuring import native
from gpuring.cli import clean
from gpuring.cli.durable import keeps_its_name
from gpuring.cli.owners import is_private, listed, myself, owner
from gpuring.cli.text import nbytes
from gpuring.registry import segment, survey
from gpuring.registry.stats import RingStats

from .finding import Finding

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of Linux: the namespace of the host itself."""
DOCKERS_SHM_NBYTES = 64 << 20
LEAST_SHM_NBYTES = 1 << 20
FDS_OF_A_RING = native.MAX_PEERS + 16
"""One pidfd a process at the most, the header, the watchdog, a few of CUDA's."""


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
    read_only: bool = False
    """Mounted so: nobody can write there."""
    readable: bool = True
    """Whether this user may list it."""
    free_files: int = -1
    """How many more it can hold; -1: any number."""


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
    memory_limit: int = -1
    """What this process and those beside it may have in memory; -1: all that there is."""
    rings: tuple[RingStats, ...] = ()
    unreadable: dict[str, str] = field(default_factory=dict)
    """Names that look like rings, and why they cannot be read."""
    private: tuple[str, ...] = ()
    """Rings that other users keep to themselves."""
    orphans: tuple[str, ...] = ()
    """Slots of this user that belong to no ring."""
    foreign_pids: tuple[int, ...] = ()
    """The pids of living peers of other pid namespaces."""


Check = Callable[[Host], Finding]


def look(shm: Path = segment.SHM) -> Host:
    """This machine."""
    rings, unreadable = survey.all_rings() if os.access(shm, os.R_OK) else ([], {})
    private = {name: None for name in unreadable if is_private(name)}
    foreign = {peer.pid for one in rings for peer in one.peers if peer.alive and peer.elsewhere}
    creators = (one for one in rings if one.creator_alive and not one.taken_over)
    foreign |= {one.creator_pid for one in creators if one.creator_elsewhere}
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
        memory_limit=memory_limit(Path("/proc/self/cgroup").read_text(), Path("/sys/fs/cgroup")),
        rings=tuple(rings),
        unreadable={name: why for name, why in unreadable.items() if name not in private},
        private=tuple(private),
        orphans=_orphans() if os.access(shm, os.R_OK) else (),
        foreign_pids=tuple(sorted(foreign)),
    )


def _orphans() -> tuple[str, ...]:
    fates = clean.foresee(lambda _: True)
    return tuple(fate.name for fate in fates if fate.goes and fate.name != fate.ring)


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
        read_only=bool(size.f_flag & os.ST_RDONLY),
        readable=os.access(path, os.R_OK),
        free_files=size.f_favail if size.f_files else -1,
    )


def memory_limit(groups: str, root: Path) -> int:
    """The least memory.max of our cgroup and of those around it (cgroup v2), or -1.  `groups` is
    what /proc has of us.  A container may not see its own cgroup, and has it as its root then."""
    found = []
    for inside in re.findall(r"^0::/(.*)$", groups, re.M):
        for folder in (root / inside, *(root / inside).parents):
            if folder.is_relative_to(root):
                with contextlib.suppress(OSError, ValueError):  # "max"
                    found.append(int((folder / "memory.max").read_text()))
    return min(found, default=-1)


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
    if shm.read_only:
        fix = (
            "as root: mount -o remount,rw /dev/shm; in a container: give it one that can be "
            "written (no :ro on the volume)"
        )
        return Finding("fail", what, "mounted read-only: rings can be listed, not used", fix)
    if not shm.writable:
        fix = "as root: chmod 1777 /dev/shm; or run as a user who may write there"
        return Finding("fail", what, "this user may not write there", fix)
    found = f"{nbytes(shm.nbytes)}, {nbytes(shm.free_nbytes)} free"
    if shm.free_files == 0:
        fix = "remove files there; or mount -o remount,nr_inodes=1m /dev/shm"
        return Finding("fail", what, f"{found}, but it can hold no more files", fix)
    if shm.free_nbytes < LEAST_SHM_NBYTES:
        fix = (
            "remove what the dead have left (gpuring clean --dry-run names it) and old files there "
            "(ls -lS /dev/shm); restart programs that have kept rings which were made again "
            f"(docs/supervise.md); {enlarge}"
        )
        return Finding("fail", what, f"full: {found}", fix)
    if shm.nbytes <= DOCKERS_SHM_NBYTES:
        found += ": enough for GPU rings, little for the slots of host rings"
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
        return Finding("warn", what, f"{found}: no memory, so CUDA events may not work", share)
    if host.container and host.pid_namespace != INITIAL_PID_NAMESPACE:
        found += ": perhaps of this container alone; all processes of a ring need the same one"
        return Finding("warn", what, found, f"to share rings over containers: {share}")
    return Finding("ok", what, found)


def pid_namespace(host: Host) -> Finding:
    what = "pid namespace"
    share = (
        "memory='vmm' or 'pool', or docker run --pid=host or --pid=container:…; Kubernetes: "
        "shareProcessNamespace"
    )
    if host.foreign_pids:
        pids = ", ".join(map(str, host.foreign_pids[:8]))
        found = (
            f"living peers of rings here are in another one (pid {pids} there), so in rings with "
            "memory='ipc' their deaths are never cleared"
        )
        return Finding("warn", what, found, share)
    if host.pid_namespace != INITIAL_PID_NAMESPACE:
        found = (
            f"{host.pid_namespace}, not the host's: all peers of a ring with memory='ipc' must be "
            "in this one"
        )
        return Finding("warn", what, found, f"to share GPU rings over containers: {share}")
    return Finding("ok", what, f"{host.pid_namespace}, the host's own")


def pidfd(host: Host) -> Finding:
    what = "pidfd"
    if host.pidfd:
        fix = "Linux 5.3 or later, and a seccomp profile that allows pidfd_open"
        found = f"the kernel gives none ({host.pidfd}), so deaths on GPU rings are never cleared"
        return Finding("fail", what, found, fix)
    return Finding("ok", what, "the kernel tells when a peer's GPU work is gone")


def open_files(host: Host) -> Finding:
    what, limit = "ulimit -n", host.limits["NOFILE"]
    if limit < 0:
        return Finding("ok", what, "no limit")
    left = limit - host.open_fds
    found = f"{limit} open files, {left} left; a ring takes up to {FDS_OF_A_RING}"
    fix = "ulimit -n 4096, or LimitNOFILE= of the service"
    if left < FDS_OF_A_RING // 4:
        return Finding("fail", what, found, fix)
    if left < FDS_OF_A_RING:
        return Finding("warn", what, found, fix)
    return Finding("ok", what, found)


def file_size(host: Host) -> Finding:
    what, limit = "ulimit -f", host.limits["FSIZE"]
    if limit < 0:
        return Finding("ok", what, "no limit on the size of a segment")
    found = f"no ring on the host can have slots of more than {nbytes(limit)}"
    return Finding("warn", what, found, "ulimit -f unlimited, or LimitFSIZE= of the service")


def address_space(host: Host) -> Finding:
    what, limit = "ulimit -v", host.limits["AS"]
    if limit < 0:
        return Finding("ok", what, "no limit on address space")
    found = f"{nbytes(limit)} of address space; CUDA needs far more than a GPU has memory"
    return Finding("warn", what, found, "ulimit -v unlimited, or LimitAS= of the service")


def memory(host: Host) -> Finding:
    what, limit = "memory limit", host.memory_limit
    if limit < 0:
        return Finding("ok", what, "none for this process")
    found = f"{nbytes(limit)} for this process and those beside it (memory.max)"
    if limit >= host.shm.nbytes:
        return Finding("ok", what, found)
    found += ", and the slots of host rings count where they are created"
    fix = (
        "a process that creates a ring with more in its slots is killed: raise MemoryMax= of the "
        "unit, docker run --memory, or limits.memory of the container"
    )
    return Finding("warn", what, found, fix)


def rings(host: Host) -> Finding:
    what = "rings"
    if not host.shm.readable:
        fix = f"as root: chmod 1777 {host.shm.path}; or run as a user who may list it"
        return Finding("warn", what, f"this user may not list {host.shm.path}", fix)
    if host.unreadable:
        fix = "`gpuring inspect NAME` says why; `gpuring clean NAME` removes one that nobody uses"
        return Finding("warn", what, f"cannot be read: {listed(sorted(host.unreadable))}", fix)
    kept = {one.name: why for one in host.rings if (why := keeps_its_name(one))}
    dead = [
        one
        for one in host.rings
        if not one.creator_alive
        and not any(peer.alive for peer in one.peers)
        and one.name not in kept
    ]
    if dead:
        names = listed(one.name for one in dead)
        return Finding("warn", what, f"no process uses {names} any more", _cleaning(dead))
    if host.orphans:
        found = f"slots that belong to no ring: {listed(host.orphans)}"
        return Finding("warn", what, found, "gpuring clean")
    names = listed(one.name for one in host.rings)
    found = f"{len(host.rings)} here: {names}" if names else "none here now"
    found += "".join(f"; {why}" for why in kept.values())
    if host.private:
        found += f"; private ones of other users: {listed(host.private)}"
    return Finding("ok", what, found)


def _cleaning(dead: Iterable[RingStats]) -> str:
    """The commands that remove dead rings, one for each user who owns some."""
    whose: dict[str, list[str]] = {}
    for one in dead:
        whose.setdefault(owner(one.name), []).append(one.name)
    commands = "; ".join(
        f"gpuring clean {' '.join(names)}" + ("" if user == myself() else f", as user {user}")
        for user, names in sorted(whose.items())
    )
    lasting = [one.name for one in dead if any(sub.durable for sub in one.subscriptions)]
    ends = f"; this also ends the durable subscriptions of {listed(lasting)}" if lasting else ""
    return commands + ends


CHECKS: tuple[Check, ...] = (
    *(software, shm_size, shm_identity, pid_namespace, pidfd),
    *(open_files, file_size, address_space, memory, rings),
)
