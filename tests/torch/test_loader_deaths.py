"""Workers and main processes of DataLoader that are killed or interrupted."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import multiprocessing.connection
import multiprocessing.queues
import os
import re
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import Any

import pytest

pytest.importorskip("torch")

from torch.utils.data import Subset

from gpuring.torch import DataLoader, loader
from gpuring.torch.places import HOST
from tests.helpers.commands import environment
from tests.helpers.interrupted import at_each_place
from tests.helpers.processes import PATIENCE_S, poll, runs
from tests.helpers.rings import waiters
from tests.torch import datasets
from tests.torch.interrupted import SignalInTorch, check_interrupted
from tests.torch.programs import left_by, program


@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_named(persistent):
    loading = DataLoader(datasets.Deadly(), 2, num_workers=2, persistent_workers=persistent)
    batches = iter(loading)
    pids = [worker.pid for worker in batches._workers]
    with pytest.raises(RuntimeError) as caught:
        list(batches)
    text = str(caught.value)
    assert f"Worker 0 (pid {pids[0]}) was at sample 13, in batch 6, and had not deliv" in text
    assert "batch 6 (samples [12, 13])" in text
    assert "batch 7" not in text
    assert re.match(r"DataLoader worker \(pid(\(s\))? ?\d+\)", text)
    del batches, loading, caught
    gc.collect()
    assert not datasets.rings()
    assert poll(lambda: not any(map(runs, pids)))


def test_after_a_death_another_loop_has_other_workers():
    loading = DataLoader(datasets.Numbered(), 2, num_workers=2, persistent_workers=True)
    batches = iter(loading)
    with pytest.raises(RuntimeError, match="killed by signal"):
        assert not poll(batches._workers[1].kill)
    assert len(list(loading)) == 20


EVEN_FIRST = [*range(0, 40, 2), *range(1, 40, 2)]
PLACES = {
    "spawned": (
        lambda: DataLoader(datasets.Deadly(), 2, num_workers=2, multiprocessing_context="spawn"),
        "Worker 0 {} was at sample 13, in batch 6, and had",
    ),
    "no batches": (
        lambda: DataLoader(datasets.Deadly(), None, num_workers=2),
        "Worker 1 {} was at sample 13, and had",
    ),
    "all of a batch at once": (
        lambda: DataLoader(Subset(datasets.Deadly(), EVEN_FIRST), 4, num_workers=2),
        "Worker 0 {} was at sample 26, in batch 6, and had",
    ),
    "at once": (
        lambda: DataLoader(datasets.DeadlyAtOnce(), 4, num_workers=2),
        "Worker 1 {} was at one of the samples of batch 3, and had",
    ),
    "a part of at once": (
        lambda: DataLoader(Subset(datasets.DeadlyAtOnce(), EVEN_FIRST), 4, num_workers=2),
        "Worker 0 {} was at one of the samples of batch 6, and had",
    ),
    "indices that are no list": (
        lambda: DataLoader(
            datasets.Deadly(), batch_sampler=[(k, k + 1) for k in range(0, 40, 2)], num_workers=2
        ),
        "Worker 0 {} was at one of the samples of batch 6, and had",
    ),
    "stream": (
        lambda: DataLoader(datasets.DeadlyStream(), 4, num_workers=2),
        "Worker 1 {} was at the sample after 6 others, in batch 3, and had",
    ),
    "stream without batches": (
        lambda: DataLoader(datasets.DeadlyStream(), None, num_workers=2),
        "Worker 1 {} was at the sample after 6 others, in batch 13, and had",
    ),
    "collate": (
        lambda: DataLoader(
            datasets.Numbered(), 4, num_workers=2, collate_fn=datasets.deadly_collate
        ),
        "Worker 1 {} was collating batch 3, and had",
    ),
}


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=pytest.mark.slow if what == "spawned" else ()) for what in PLACES],
)
def test_what_a_killed_worker_was_at_is_said(what):
    make, says = PLACES[what]
    with pytest.raises(RuntimeError) as caught:
        list(make())
    text = re.sub(r"\(pid \d+\)", "{}", str(caught.value))
    assert says in text


def test_a_worker_that_waited_for_a_task_was_at_no_sample():
    """The worker had been at a sample in the epoch before."""
    loading = DataLoader(datasets.Numbered(4), 2, num_workers=2, persistent_workers=True)
    list(loading)
    loading.batch_sampler.batch_size = 4  # from now on there is nothing to do for worker 1
    batches = iter(loading)
    with pytest.raises(RuntimeError, match="killed by signal"):  # by torch's handler of SIGCHLD
        assert not poll(batches._workers[1].kill)
    assert re.match(r"Worker 1 \(pid \d+\) was at no sample, and had", batches._deaths())


def test_a_death_that_torch_tells_first_is_told_in_full_by_the_next_steps():
    batches = iter(DataLoader(datasets.Numbered(), 2, num_workers=1))
    next(batches)
    with pytest.raises(RuntimeError, match="killed by signal"):  # by torch's handler of SIGCHLD
        assert not poll(batches._workers[0].kill)
    with pytest.raises(RuntimeError, match=r"Worker 0 \(pid \d+\) .* not delivered batch"):
        list(batches)


@pytest.mark.slow
@pytest.mark.parametrize("without", ["a main guard", "a dataset in a file"])
def test_a_worker_that_cannot_start_is_told_what_it_needs(without, tmp_path):
    program = """
from torch.utils.data import Dataset
from gpuring.torch import DataLoader
from tests.torch.datasets import Numbered
class Here(Dataset):
    __len__, __getitem__ = lambda self: 4, lambda self, k: k
DATA
next(iter(DataLoader(data, 2, num_workers=1, multiprocessing_context="spawn")))
"""
    in_file = without == "a main guard"
    program = program.replace("DATA", f"data = {'Numbered' if in_file else 'Here'}()")
    (tmp_path / "it.py").write_text(program)
    command = [sys.executable, tmp_path / "it.py"] if in_file else [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment(), check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    (said,) = re.findall(r"^RuntimeError: DataLoader worker .*$", done.stderr, re.M)[-1:]
    assert "was starting, and had not delivered batch 0" in said
    assert 'under `if __name__ == "__main__":`' in said


def test_a_worker_leaves_the_workers_of_another_loop_alone(capfd):
    """A forked worker has a copy of the other loop's iterator."""
    kept = datasets.Forgets.kept  # the only reference, which the worker drops
    kept.append(iter(DataLoader(datasets.Numbered(), 2, num_workers=1)))
    assert len([*DataLoader(datasets.Forgets(), 10, num_workers=1)]) == 4
    assert len([*kept.pop()]) == 20
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("pinned", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_a_worker_that_dies_while_a_batch_is_fetched_from_it_is_named(pinned, monkeypatch):
    """The first batch has no slot, so its tensors are fetched from the worker.  The worker still
    seems to be alive when its connections have ended.  torch's thread for pinned memory ends in
    silence."""
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(loader, "DEATH_S", PATIENCE_S)
    there = multiprocessing.Event()
    loading = DataLoader(
        datasets.Unreachable(there), 2, num_workers=1, multiprocessing_context="fork",
        pin_memory=pinned,
    )  # fmt: skip
    batches = iter(loading)
    assert there.wait(PATIENCE_S)
    of_torch = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # only the main thread can set it
    killer = threading.Timer(0.1, batches._workers[0].kill)
    killer.start()
    try:
        with pytest.raises(RuntimeError, match=r"^DataLoader worker .* at sample 2, in batch 1"):
            next(batches)
    finally:
        killer.join()
        batches._workers[0].join(PATIENCE_S)  # it ends later than its connections
        signal.signal(signal.SIGCHLD, of_torch)
    assert not failed


class Narrow(loader.Inlet):
    """Makes rings with one slot, so that a worker that is ahead waits."""

    def __init__(self, need, workers, slots, device):
        super().__init__(need, workers, 1, device)


def test_workers_that_wait_for_a_slot_end_in_order(monkeypatch):
    monkeypatch.setattr(loader, "Inlet", Narrow)
    batches = iter(DataLoader(datasets.Numbered(), 2, num_workers=1))
    for number in range(10):
        assert next(batches)[1].tolist() == [2 * number, 2 * number + 1]
    assert poll(batches._data_queue._reader.poll)  # the slot has batch 10, and 11 has none
    assert poll(functools.partial(waiters, batches._inlet._rings[0, HOST].ring))
    (worker,) = batches._workers
    terminated: list[int] = []  # torch terminates a worker that does not end in 5 s
    monkeypatch.setattr(worker, "terminate", lambda: (terminated.append(1), worker.kill()))
    del batches
    gc.collect()
    assert worker.exitcode == 0
    assert not terminated


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", ["waits", "loads", "persistent"])
def test_ctrl_c_leaves_nothing(kind):
    with program(kind) as (process, workers):
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode in (1, -signal.SIGINT)
        assert "KeyboardInterrupt" in said
        assert poll(lambda: not any(map(runs, workers)))
        assert not left_by(process.pid)


def test_after_the_ctrl_c_of_a_terminal_a_loop_goes_on():
    """A terminal sends Ctrl-C to the workers, too."""
    with program("goes on") as (process, workers):
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert said.split() == ["8", "10"]
        assert poll(lambda: not any(map(runs, workers)))


class Handlers(datasets.Numbered):
    def __getitem__(self, k):
        return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def ignore(_worker):
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize("init", [None, ignore])
def test_what_a_worker_does_at_a_ctrl_c_is_the_users(init):
    """Without a user's handler, a worker ignores it, but programs that the worker starts do not
    inherit that."""
    assert next(iter(DataLoader(Handlers(), None, num_workers=1, worker_init_fn=init))) is bool(
        init
    )


class SignalInStep(SignalInTorch):
    """A signal where a step of the loop begins or ends."""

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        step = frame.f_code.co_name in ("__next__", "_step")
        return super()._call(frame, event, arg) if step else None


def test_after_a_ctrl_c_a_loop_goes_on_or_raises():
    loading = DataLoader(datasets.Numbered(12), 2, num_workers=1, persistent_workers=True)
    for interrupt in at_each_place(SignalInTorch, step=5):
        check_interrupted(interrupt, loading, 2)
    for interrupt in at_each_place(SignalInStep):
        check_interrupted(interrupt, loading, 2)
    del loading
    gc.collect()
    assert not datasets.rings()


@pytest.mark.slow
def test_after_a_ctrl_c_while_a_ring_is_made_a_loop_goes_on_or_raises():
    for interrupt in at_each_place(SignalInTorch, step=29):
        check_interrupted(interrupt, DataLoader(datasets.Numbered(12), 2, num_workers=1), 0)
        gc.collect()
        assert not datasets.rings(), interrupt.where


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", ["waits", "loads"])
def test_workers_of_a_killed_process_end_and_take_its_rings_along(kind):
    with program(kind) as (process, workers):
        assert len(workers) == 2
        process.kill()
        process.wait(PATIENCE_S)
        assert poll(lambda: not any(map(runs, workers)))
        assert not left_by(process.pid)


def test_if_all_are_killed_at_once_nothing_is_left():
    with program("waits") as (process, workers):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        assert poll(lambda: not any(map(runs, workers)))
        assert not left_by(process.pid)


def test_a_worker_takes_the_name_of_its_ring_away_before_it_loads():
    gate = multiprocessing.Event()
    gate.set()
    loading = DataLoader(datasets.Gated(gate, 0), 4, num_workers=2, multiprocessing_context="fork")
    list(loading)
    gate.clear()
    batches = iter(loading)
    assert {worker for worker, _ in batches._inlet._rings} == {0, 1}
    assert poll(lambda: not datasets.rings())
    gate.set()
    assert len(list(batches)) == 10


def test_a_worker_without_a_batch_has_no_ring():
    loading = DataLoader(datasets.Numbered(8), 4, num_workers=3)
    list(loading)
    batches = iter(loading)
    assert {worker for worker, _ in batches._inlet._rings} == {0, 1}
    assert len(list(batches)) == 2
