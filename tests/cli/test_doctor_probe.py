"""`gpuring doctor`: the rings that it tries out."""

from __future__ import annotations

import multiprocessing.spawn
import os
import re
import signal
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

import gpuring
from gpuring.cli import doctor
from gpuring.cli.doctor import gpu, probe
from gpuring.cli.measure.crew import Crew, Part
from tests.cli.findings import PROBES, findings

PATIENCE_S = 2.0


class Hasty(Crew):
    """Workers that are soon given up if they hang, and otherwise get the usual time."""

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
    """A stopped process takes the place of a dead one that nobody clears."""
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


def test_a_python_that_cannot_be_started_is_found(monkeypatch):
    """As that of a virtual environment in the home of another user."""
    resource_tracker.ensure_running()  # tests behind this one need it
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", b"/nowhere/python3")
    found = {finding.what: finding for finding in doctor.examine(0, probing=True)}
    for what in ("GPU driver", "probe: host", "probe: death"):
        assert found[what].level == "fail"
        assert re.search("does not start|died", found[what].found), found[what]


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
