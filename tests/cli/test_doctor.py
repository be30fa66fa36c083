"""`gpuring doctor`: what it says of this machine, of broken ones, and of rings that do not work."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

import gpuring
from gpuring.bridge.engines.nixl.rdma_devices import Nic
from gpuring.cli import doctor
from gpuring.cli.doctor import gpu, host, network, probe
from gpuring.cli.doctor.finding import Finding, Level, in_lines
from gpuring.cli.measure.crew import Crew, Part
from gpuring.registry import segment as segments
from gpuring.registry import survey
from tests import ROOT
from tests.helpers.commands import gpuring as command

ON_GPU = ["probe: memory", "probe: vmm", "probe: event", "probe: timeline", "probe: pinned"]
PROBES = ["probe: host", "probe: death", *ON_GPU]
LEVELS = get_args(Level)


def findings(*options, **more):
    """The exit status and the findings by what they are about."""
    done = command("doctor", "--json", *options, **more)
    document = json.loads(done.stdout)
    assert set(document) == {"gpuring", "counts", "findings"}
    assert document["gpuring"] == gpuring.__version__
    listed = document["findings"]
    for finding in listed:
        assert set(finding) == {"level", "what", "found", "fix"}
        assert all(isinstance(value, str) for value in finding.values())
        assert finding["level"] in LEVELS
        assert finding["found"]
        assert (finding["level"] in ("ok", "skip")) == (not finding["fix"]), finding
    assert len({finding["what"] for finding in listed}) == len(listed)
    levels = [finding["level"] for finding in listed]
    assert document["counts"] == {level: levels.count(level) for level in LEVELS}
    assert done.returncode == (1 if "fail" in levels else 0), done.stderr
    return done.returncode, {finding["what"]: finding for finding in listed}


def _check_sum(text):
    """The last line counts the findings above it."""
    shown = re.findall(r"^(ok|skip|warn|fail) ", text, re.MULTILINE)
    warnings = "warning" if shown.count("warn") == 1 else "warnings"
    words = zip(LEVELS, ("ok", "skipped", warnings, "failed"), strict=True)
    counts = ", ".join(f"{shown.count(level)} {word}" for level, word in words)
    assert text.splitlines()[-1] == counts


def sample():
    """What docs/tools.md shows."""
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
    for left in Path("/dev/shm").glob("gpuring.doctor-*"):  # by another one that runs
        assert Path("/proc", left.name.split("-")[1]).exists(), left
    _check_sum(sample())
    shown = re.findall(r"^(\w+) +(\S.*?)  ", sample(), re.MULTILINE)
    others = "full rings"  # of programs that run beside this test
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
        seen = [replace(one, creator_pid=2**22 + 1), one]
        monkeypatch.setattr(survey, "all_rings", lambda: (seen, {}))
        assert host.look().foreign_pids == (2**22 + 1,)


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
    (network.bridge, {"zmq": ""}, "ok", "pyzmq is not installed"),
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
    assert bool(finding.fix) == (level == "warn")


def test_a_machine_without_rdma_hears_nothing_of_it():
    assert network.rdma(replace(RDMA, ports=())) is None
    assert network.gpu_direct(replace(RDMA, ports=())) is None
    assert network.gpu_direct(replace(RDMA, gpus=False)) is None
    assert network.bridge(network.Network()).level == "ok"


GPU = gpu.Gpu(
    ordinal=0,
    name="NVIDIA H200",
    uuid="12345678-0000-0000-0000-000000000000",
    compute_mode=0,
    integrated=False,
    host_register=True,
    stream_words=True,
    ipc_events=True,
    mps=False,
    vmm=True,
    pool=True,
    peers=(1,),
)
GPUS = gpu.Gpus(
    status=0,
    status_name="",
    kernel_module="580.159",
    device_files=True,
    cuda=13000,
    cupy="14.2.0",
    cupy_error="",
    cupy_cuda=13000,
    torch="2.11.0",
    visible=None,
    wsl=False,
    mps_directory=None,
    mps_answers=False,
    in_container=False,
    gpus=(GPU, replace(GPU, ordinal=1, peers=(0,))),
)


def each(**change):
    return {"gpus": tuple(replace(one, **change) for one in GPUS.gpus)}


NONE = {"gpus": (), "cupy": ""}
BROKEN_GPUS = [
    (gpu.driver, NONE | {"status": 100}, "warn", "docker run --gpus all"),
    (gpu.driver, NONE | {"status": 100, "visible": "7"}, "warn", "CUDA_VISIBLE_DEVICES"),
    (gpu.driver, NONE | {"status": -1, "device_files": False}, "warn", "install its driver"),
    (gpu.driver, NONE | {"status": -1}, "fail", "libcuda.so.1"),
    (gpu.driver, NONE | {"status": 802}, "fail", "fabricmanager"),
    (gpu.driver, NONE | {"status": 803}, "fail", "reboot"),
    (gpu.driver, NONE | {"status": 999}, "fail", "nvidia-smi"),
    (gpu.arrays, {"cupy": "", "cupy_error": "no"}, "fail", "gpuring[cuda13]"),
    (gpu.arrays, {"cuda": 12080}, "fail", "gpuring[cuda12]"),
    (gpu.arrays, {"cupy": "", "torch": ""}, "warn", "'gpuring[torch]'"),
    (gpu.arrays, {"cupy": "", "torch": "2.11.0+cpu"}, "warn", "'gpuring[torch]'"),
    (gpu.platform, {"wsl": True}, "warn", "memory='auto'"),
    (gpu.platform, each(integrated=True), "warn", "memory='auto'"),
    (gpu.compute_mode, each(compute_mode=2), "fail", "nvidia-smi -c DEFAULT"),
    (gpu.compute_mode, each(compute_mode=3), "fail", "nvidia-smi -c DEFAULT"),
    (gpu.mps, {"mps_directory": "/nowhere"}, "warn", "nvidia-cuda-mps-control"),
    (gpu.mig, each(name="NVIDIA H200 MIG 1g.18gb"), "warn", "CUDA_VISIBLE_DEVICES=MIG"),
    (gpu.timeline, each(stream_words=False), "warn", "sync='auto'"),
    (gpu.timeline, each(host_register=False), "warn", "sync='auto'"),
    (gpu.events, each(ipc_events=False), "warn", "timeline"),
    (gpu.peer_access, each(peers=()), "warn", "slot.copy_to"),
    (gpu.memory, each(vmm=False) | {"in_container": True}, "warn", "--pid=host"),
]


@pytest.mark.parametrize(("check", "change", "level", "fix"), BROKEN_GPUS)
def test_a_broken_gpu_is_found(check, change, level, fix):
    finding = check(replace(GPUS, **change))
    assert (finding.level, fix in finding.fix) == (level, True), finding


def test_exclusive_mode_is_fine_under_mps_and_unknown_is_not_broken():
    assert gpu.compute_mode(replace(GPUS, **each(compute_mode=3, mps=True))).level == "ok"
    assert gpu.mps(replace(GPUS, **each(mps=True))).found.startswith("on")
    assert gpu.mps(replace(GPUS, mps_answers=True, **each(mps=None))).found.startswith("on")
    assert gpu.compute_mode(replace(GPUS, **each(compute_mode=None))).level == "ok"
    assert gpu.events(replace(GPUS, **each(ipc_events=None))) is None
    assert gpu.peer_access(replace(GPUS, gpus=(GPU,))) is None


def test_what_auto_takes_is_said_and_why():
    said = gpu.memory(GPUS)
    assert (said.level, said.found) == (
        "ok",
        "memory='auto' takes ipc, because this process is in the first pid namespace of the system",
    )
    contained = gpu.memory(replace(GPUS, in_container=True))
    assert (contained.level, "takes vmm" in contained.found) == ("ok", True)


def test_frames_go_from_each_gpu_to_each_that_reaches_it(monkeypatch):
    tried = []
    monkeypatch.setattr(probe, "on_gpu", lambda *_, **__: [])
    monkeypatch.setattr(
        probe,
        "_frames",
        lambda _, what, __, options, *gpus: tried.append((what, options["device"], gpus[:2])),
    )
    list(doctor._probe_gpu(GPUS, 0))
    assert tried == [
        ("probe: 1 to 0", "cuda:1", (1, 0)),
        ("probe: 0 to 1", "cuda:0", (0, 1)),
    ]
    tried.clear()
    list(doctor._probe_gpu(replace(GPUS, **each(peers=())), 0))
    assert tried == []


def test_a_check_that_breaks_is_a_finding():
    finding = doctor._judged(gpu.uuids, None)
    assert (finding.level, finding.what) == ("warn", "uuids")
    assert "AttributeError" in finding.found


# ---- rings that do not work --------------------------------------------------------------------

PATIENCE_S = 2.0


class Hasty(Crew):
    """It has patience with whoever does not hang."""

    def start(self, role, *args, patience_s):
        return super().start(role, *args, patience_s=PATIENCE_S if role is hang else patience_s)


def hang(_pipe, *_):
    signal.pause()


def vanish(_pipe, *_):
    os._exit(3)


def survive_briefly(pipe, name, _patience_s):
    return probe.survive(pipe, name, PATIENCE_S)


def write_wrongly(pipe, name, *_):
    with gpuring.create(
        name, slots=4, shape=probe.NBYTES, dtype="u1", meta=[("k", "i8")], device="host"
    ) as ring:
        pipe.send(ring.sync)
        pipe.receive()
        with ring.producer() as producer:
            for k in range(probe.FRAMES):
                with producer.claim(10) as slot:
                    slot.array[...] = probe._byte(k)
                    slot.array[5] ^= k == 7
                    slot.meta["k"] = k
            pipe.send()
            pipe.receive()
        return 0


def probed(device="host"):
    with probe._ring() as name, Hasty() as crew:
        finding = probe._frames(crew, "probe", name, {"device": device}, 0, 0, probe.GPU_PATIENCE_S)
    assert not list(Path("/dev/shm").glob(f"gpuring.{name}*")), "left behind"
    return finding


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("role", "broken", "said"),
    [
        ("write", vanish, "cannot create: .*died"),
        ("write", hang, "cannot create: .*said nothing for 2 s"),
        ("read", hang, "cannot attach: .*said nothing for 2 s"),
        ("read", vanish, "cannot attach: .*died"),
        ("write", write_wrongly, "1 of 64 frames arrived damaged .*frame 7: 1 bytes"),
    ],
)
def test_a_ring_that_does_not_work_is_found(monkeypatch, role, broken, said):
    monkeypatch.setattr(probe, role, broken)
    finding = probed()
    assert finding.level == "fail"
    assert finding.fix
    assert re.search(said, finding.found), finding


@pytest.mark.slow
def test_a_gpu_ring_without_a_gpu_is_found(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    finding = probed("cuda:0")
    assert (finding.level, "DeviceError" in finding.found) == ("fail", True), finding


@pytest.mark.slow
def test_the_dead_that_are_not_cleared_are_found(monkeypatch):
    """A stopped process stands for a dead one that nobody clears."""
    monkeypatch.setattr(Part, "kill", lambda part: os.kill(part.pid, signal.SIGSTOP))
    monkeypatch.setattr(probe, "survive", survive_briefly)
    with probe._ring() as name, Crew() as crew:
        finding = probe._death(crew, name, probe.GPU_PATIENCE_S)
    assert (finding.level, "was not cleared" in finding.found) == ("fail", True), finding
    assert "RingFull" in finding.found


@pytest.mark.slow
def test_a_driver_that_hangs_is_found(monkeypatch):
    monkeypatch.setattr(gpu, "look", hang)
    monkeypatch.setattr(doctor, "DRIVER_PATIENCE_S", PATIENCE_S)
    found = {finding.what: finding for finding in doctor.examine(0, probing=False)}
    assert found["GPU driver"].level == "fail"
    assert "said nothing" in found["GPU driver"].found


# ---- with a GPU --------------------------------------------------------------------------------


@pytest.mark.gpu
def test_every_probe_passes_on_a_gpu():
    status, found = findings(timeout=170)
    assert found["GPU driver"]["level"] == "ok"
    assert {found[what]["level"] for what in PROBES} == {"ok"}, found
    skipped = [what for what in PROBES if "skipped" in found[what]["found"]]
    assert skipped in ([], ["probe: timeline"])
    assert status == 0, found


@pytest.mark.gpu
def test_a_gpu_that_is_not_there_cannot_be_probed():
    status, found = findings("--device", "cuda:99", timeout=170)
    assert (status, found["probe: memory"]["level"]) == (1, "fail")
