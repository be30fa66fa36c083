"""`gpuring doctor`: what it says of this machine, and of broken ones."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import replace
from pathlib import Path

import pytest

import gpuring
from gpuring.bridge.engines.nixl.rdma_devices import Nic
from gpuring.cli import doctor
from gpuring.cli.doctor import gpu, host, network
from gpuring.cli.doctor.finding import Finding, in_lines
from gpuring.registry import segment as segments
from gpuring.registry import survey
from tests import ROOT
from tests.cli.findings import LEVELS, PROBES, findings
from tests.cli.gpus import GPUS
from tests.helpers.commands import gpuring as command


def _check_sum(text):
    """The last line counts the findings above it."""
    shown = re.findall(r"^(ok|skip|warn|fail) ", text, re.MULTILINE)
    warnings = "warning" if shown.count("warn") == 1 else "warnings"
    words = zip(LEVELS, ("ok", "skipped", warnings, "failed"), strict=True)
    counts = ", ".join(f"{shown.count(level)} {word}" for level, word in words)
    assert text.splitlines()[-1] == counts


def sample():
    """The output that docs/tools.md shows."""
    page = (ROOT / "docs" / "tools.md").read_text()
    return re.search(r"^\$ gpuring doctor\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)[1]


# ---- this machine ------------------------------------------------------------------------------


@pytest.mark.slow
def test_json_and_a_real_probe(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # where there is a GPU: hide it
    status, found = findings()
    assert list(found)[-len(PROBES) :] == PROBES
    assert (found["probe: host"]["level"], found["probe: death"]["level"]) == ("ok", "ok"), found
    assert found["GPU driver"]["level"] == "warn"
    assert "no GPU: host rings only" in found["GPU driver"]["found"]
    for what in PROBES[2:]:
        assert (found[what]["level"], found[what]["found"]) == ("skip", "no GPU")
    assert status == any(finding["level"] == "fail" for finding in found.values())
    for left in Path("/dev/shm").glob("gpuring.doctor-*"):  # of another doctor that runs
        assert Path("/proc", left.name.split("-")[1]).exists(), left
    _check_sum(sample())
    shown = re.findall(r"^(\w+) +(\S.*?)  ", sample(), re.MULTILINE)
    others = "full rings"  # about programs that run at the same time
    assert [what for _, what in shown] == [what for what in found if what != others]
    assert all(found[what]["level"] == level for level, what in shown if what in PROBES)


@pytest.mark.slow
def test_text_says_the_same_in_lines_that_fit():
    done = command("doctor", "--no-probe", env=os.environ | {"COLUMNS": "80"})
    lines = done.stdout.splitlines()
    assert any(line.startswith("ok    software") for line in lines)
    assert not any("probe" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)
    _check_sum(done.stdout)
    text = in_lines(Finding("fail", "what", "found " * 30, "fix " * 30), 80)
    assert text.startswith("fail  what ")
    assert "→ fix" in text


@pytest.mark.slow
def test_too_few_open_files_are_found():
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    status, found = findings("--no-probe", preexec_fn=few)
    assert status == 1
    assert found["ulimit -n"]["level"] == "fail"
    assert "64 open files" in found["ulimit -n"]["found"]
    assert "ulimit -n 4096" in found["ulimit -n"]["fix"]


def test_rings_that_are_damaged_or_dead_are_found(name, monkeypatch):
    path = Path("/dev/shm", segments.header_name(name)[1:])
    path.write_bytes(b"\1" * 8192)
    try:
        finding = host.rings(host.look())
        assert (finding.level, name in finding.found) == ("warn", True)
    finally:
        path.unlink()
    with gpuring.create(name, slots=2, shape=8, dtype="u1", device="host") as ring:
        dead = replace(ring.stats(), creator_alive=False)
        finding = host.rings(replace(host.look(), rings=(dead,), unreadable={}))
        assert (finding.level, finding.fix) == ("warn", f"gpuring clean {name}")
        monkeypatch.setattr(host, "owner", lambda _: "nobody")
        finding = host.rings(replace(host.look(), rings=(dead,), unreadable={}))
        assert finding.fix == f"gpuring clean {name}, as user nobody"


def test_slots_without_a_ring_are_found(name):
    orphan = Path(f"/dev/shm/gpuring.{name}+{'0' * 32}")
    orphan.write_bytes(b"x")
    try:
        assert orphan.name in host.look().orphans
    finally:
        orphan.unlink()
    assert orphan.name not in host.look().orphans


def test_a_closed_ring_that_keeps_its_name_for_a_subscription_is_not_to_be_cleaned(name):
    with gpuring.create(
        name, slots=2, shape=8, dtype="u1", device="host", subscriptions=["rec"]
    ) as ring:
        killed = replace(ring.stats(), creator_alive=False)
    left = one_of(name)
    finding = host.rings(replace(HOST, rings=(replace(left, creator_alive=False),)))
    kept = f"{name} was closed, and keeps its name for the durable subscription rec"
    assert (finding.level, finding.fix) == ("ok", "")
    assert finding.found == f"1 here: {name}; {kept}"
    finding = host.rings(replace(HOST, rings=(killed,)))
    ends = f"this also ends the durable subscriptions of {name}"
    assert (finding.level, finding.fix) == ("warn", f"gpuring clean {name}; {ends}")


def one_of(name):
    return next(one for one in gpuring.ls() if one.name == name)


# ---- machines that are broken in one way -------------------------------------------------------

SHM = host.Shm("/dev/shm", "tmpfs", "mount 0:27/", 8 << 30, 8 << 30, True)
HOST = host.Host(
    shm=SHM,
    pid_namespace=host.INITIAL_PID_NAMESPACE,
    pidfd="",
    container="",
    limits={"NOFILE": 4096, "FSIZE": -1, "AS": -1},
    open_fds=10,
)
SMALL = replace(SHM, nbytes=64 << 20)
FULL = replace(SHM, free_nbytes=4096)
BROKEN_HOSTS = [
    (host.shm_size, {"shm": replace(SHM, kind="")}, "fail", "mount -t tmpfs"),
    (host.shm_size, {"shm": replace(SHM, writable=False)}, "fail", "chmod 1777"),
    (host.shm_size, {"shm": replace(SHM, read_only=True, writable=False)}, "fail", "remount,rw"),
    (host.rings, {"orphans": ("gpuring.x+0",)}, "warn", "gpuring clean"),
    (host.rings, {"shm": replace(SHM, readable=False)}, "warn", "may list it"),
    (host.shm_size, {"shm": replace(SHM, free_files=0)}, "fail", "nr_inodes"),
    (host.shm_size, {"shm": FULL}, "fail", "gpuring clean"),
    (host.shm_size, {"shm": SMALL}, "warn", "--shm-size"),
    (host.shm_identity, {"shm": replace(SHM, kind="ext4")}, "warn", "--ipc=host"),
    (host.shm_identity, {"container": "docker", "pid_namespace": 7}, "warn", "--ipc=container"),
    (host.pid_namespace, {"pid_namespace": 7}, "warn", "--pid=host"),
    (host.pid_namespace, {"foreign_pids": (42,)}, "warn", "--pid=host"),
    (host.pidfd, {"pidfd": "[Errno 38] Function not implemented"}, "fail", "seccomp"),
    (host.open_files, {"open_fds": 4090}, "fail", "ulimit -n"),
    (host.open_files, {"open_fds": 3900}, "warn", "ulimit -n"),
    (host.file_size, {"limits": HOST.limits | {"FSIZE": 1 << 20}}, "warn", "ulimit -f"),
    (host.address_space, {"limits": HOST.limits | {"AS": 1 << 32}}, "warn", "ulimit -v"),
    (host.memory, {"memory_limit": 1 << 30}, "warn", "MemoryMax="),
]


@pytest.mark.parametrize(("check", "change", "level", "fix"), BROKEN_HOSTS)
def test_a_broken_host_is_found(check, change, level, fix):
    assert check(HOST).level == "ok"
    finding = check(replace(HOST, **change))
    assert (finding.level, fix in finding.fix) == (level, True), finding


@pytest.mark.parametrize(
    ("limits", "group", "least"),
    [
        ({}, "/user.slice/one.scope", -1),
        ({"user.slice/one.scope": "max", "user.slice": "max"}, "/user.slice/one.scope", -1),
        ({"user.slice/one.scope": "max", "user.slice": "4096"}, "/user.slice/one.scope", 4096),
        ({"user.slice/one.scope": "512", "user.slice": "4096"}, "/user.slice/one.scope", 512),
        ({"": "4096"}, "/docker/of-the-host", 4096),
    ],
    ids=["none", "no limit", "around", "own", "container"],
)
def test_the_memory_limit_is_the_least_of_all_cgroups_around(tmp_path, limits, group, least):
    for place, limit in limits.items():
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "memory.max").write_text(f"{limit}\n")
    assert host.memory_limit(f"1:name=systemd:/x\n0::{group}\n", tmp_path) == least
    assert host.memory_limit("8:memory:/x\n", tmp_path) == -1


def test_where_no_ring_can_be_made_that_alone_is_blamed(monkeypatch):
    monkeypatch.setattr(host, "look", lambda: replace(HOST, shm=FULL))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = list(doctor.examine(0, probing=True))
    assert [finding.what for finding in found if finding.level == "fail"] == ["/dev/shm size"]
    assert (found[-1].what, "skipped" in found[-1].found) == ("probes", True)


def test_private_rings_of_others_are_no_trouble():
    finding = host.rings(replace(HOST, private=("theirs",)))
    assert (finding.level, "theirs" in finding.found) == ("ok", True)


def test_a_sound_machine_is_called_sound():
    assert [check(HOST).level for check in host.CHECKS] == ["ok"] * len(host.CHECKS)
    assert gpu.driver(GPUS).level == "ok"
    assert {finding.level for check in gpu.CHECKS if (finding := check(GPUS))} == {"ok"}


def test_shared_memory_that_is_not_there_or_not_memory(tmp_path):
    missing = host.look(tmp_path / "nothing")
    assert host.shm_size(missing).level == host.shm_identity(missing).level == "fail"
    here = host.look()
    assert here.shm.kind
    assert here.shm.nbytes >= here.shm.free_nbytes > 0
    assert here.foreign_pids == ()


def test_living_peers_of_another_pid_namespace_are_seen(name, monkeypatch):
    with gpuring.create(name, slots=2, shape=8, dtype="u1", device="host") as ring:
        one = ring.stats()
        # A process of this namespace has the pid 1, too.
        there = replace(one, creator_pid=1, creator_elsewhere=True)
        seen = [there, one, replace(there, creator_pid=2, creator_alive=False)]
        monkeypatch.setattr(survey, "all_rings", lambda: (seen, {}))
        assert host.look().foreign_pids == (1,)


PORT = Nic("mlx5_0", 1, True, "InfiniBand", "400 Gb/sec (4X NDR)")
RDMA = network.Network(
    zmq="27.1.0",
    nixl="nixl_cu13 1.5.1",
    back_ends=("POSIX", "UCX"),
    ports=(PORT,),
    gpu_direct="nvidia_peermem",
    gpus=True,
)
NETWORKS = [
    (network.bridge, {}, "ok", "NIXL over RDMA where the other side has both"),
    (network.bridge, {"zmq": ""}, "skip", "pyzmq is not installed: gpuring bridge cannot"),
    (network.bridge, {"ports": ()}, "ok", "there is no active RDMA device"),
    (network.bridge, {"ports": (), "nixl": ""}, "ok", "ZeroMQ over TCP (pyzmq 27.1.0)"),
    (network.bridge, {"nixl": ""}, "warn", "NIXL is not installed"),
    (network.bridge, {"nixl_error": "it does not start"}, "warn", "because it does not start"),
    (network.bridge, {"back_ends": ("POSIX",)}, "warn", "NIXL has no UCX"),
    (network.rdma, {}, "ok", "mlx5_0:1 (InfiniBand, 400 Gb/sec (4X NDR))"),
    (
        network.rdma,
        {"ports": (replace(PORT, active=False),)},
        "warn",
        "no port is active: mlx5_0:1",
    ),
    (
        network.rdma,
        {"ports": (PORT, replace(PORT, port=2, active=False))},
        "ok",
        "not active: mlx5_0:2",
    ),
    (network.gpu_direct, {}, "ok", "nvidia_peermem is loaded"),
    (network.gpu_direct, {"gpu_direct": ""}, "warn", "nvidia_peermem is not loaded"),
]


@pytest.mark.parametrize(("check", "change", "level", "found"), NETWORKS)
def test_what_a_bridge_would_take_is_told(check, change, level, found):
    finding = check(replace(RDMA, **change))
    assert (finding.level, found in finding.found) == (level, True), finding
    assert bool(finding.fix) == (level != "ok")


def test_a_machine_without_rdma_hears_nothing_of_it():
    assert network.rdma(replace(RDMA, ports=())) is None
    assert network.gpu_direct(replace(RDMA, ports=())) is None
    assert network.gpu_direct(replace(RDMA, gpus=False)) is None
    assert network.bridge(network.Network(zmq="27.1.0")).level == "ok"
