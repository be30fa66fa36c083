"""`gpuring doctor` with GPUs that are broken in one way each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuring.cli import doctor
from gpuring.cli.doctor import gpu, probe
from tests.cli.gpus import GPU, GPUS


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
