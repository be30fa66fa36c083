"""The workers of benchmarks and of `gpuring doctor`: failures are reported, and no worker is
left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

from gpuring.cli.measure.attempt import attempt
from gpuring.cli.measure.crew import Crew, RoleFailed
from gpuring.cli.measure.figures import Distribution, Figure
from tests.helpers.processes import poll, runs


def die(pipe):
    os.kill(os.getpid(), 9)


def complain(pipe):
    raise ValueError("one line\nand the last one")


def answer(pipe, what):
    return what


def environment(pipe, name):
    return os.environ.get(name)


def blocked(pipe):
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_worker_has_blocked_ctrl_c_since_before_it_imports():
    """A terminal sends Ctrl-C to workers, too, and an import that it ends prints a traceback."""
    with Crew() as crew:
        assert signal.SIGINT in crew.call(blocked)
    assert signal.SIGINT not in blocked(None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "why"), [(die, "died: killed by signal 9"), (complain, "and the last one")]
)
def test_a_dead_role_is_reported_and_the_run_goes_on(role, why):
    blank = Figure("latency", "round trip", "gpuring", "µs")
    with Crew() as crew:

        def measure():
            yield Figure("latency", "other", "gpuring", "µs", values=Distribution.of([1]))
            crew.call(role)

        (figure,) = attempt(blank, measure)  # no figure of a run that failed is reported
        assert figure.name == "round trip"
        assert figure.skipped.endswith(why)
        assert not figure.failed
        assert crew.call(answer, 42) == 42


@pytest.mark.slow
def test_workers_have_the_environment_asked_for():
    with Crew({"CUDA_MPS_PIPE_DIRECTORY": "/here"}) as crew:
        assert crew.call(environment, "CUDA_MPS_PIPE_DIRECTORY") == "/here"
    with Crew() as crew, pytest.raises(RoleFailed):
        crew.call(die)


def wait_for_ever(pipe):
    pipe.send(os.getpid())
    signal.pause()


def run_two_workers():
    with (
        Crew() as crew,
        crew.start(wait_for_ever) as one,
        crew.start(wait_for_ever, inherit=True) as other,
    ):
        print(one.receive(), other.receive(), flush=True)
        signal.pause()


@pytest.mark.slow
def test_workers_end_with_a_benchmark_that_is_killed():
    """Workers that wait for something other than their pipe end, too."""
    command = "from tests.cli import test_bench_crew; test_bench_crew.run_two_workers()"
    place = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    benchmark = subprocess.Popen(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, text=True, env=place
    )
    try:
        pids = [int(pid) for pid in benchmark.stdout.readline().split()]
        assert len(pids) == 2
    finally:
        benchmark.kill()
        benchmark.wait()
    poll(lambda: not any(runs(pid) for pid in pids))


def put(pipe, queue):
    queue.put((os.getpid(), os.environ.get("CUDA_MPS_PIPE_DIRECTORY")))
    return "put"


@pytest.mark.slow
def test_a_role_with_inherited_arguments_has_a_process_of_its_own():
    """A queue of multiprocessing cannot be sent to a worker that runs.  Environments hold for it,
    too: rivals must run under the same MPS as the ring."""
    queue = multiprocessing.get_context("spawn").Queue()
    with Crew({"CUDA_MPS_PIPE_DIRECTORY": "/here"}) as crew:
        with pytest.raises(RuntimeError, match="inheritance"):
            crew.start(put, queue)
        with crew.start(put, queue, inherit=True) as part:
            assert part.result() == "put"
            assert queue.get(timeout=10) == (part.pid, "/here")
        assert not runs(part.pid)
        assert crew.call(answer, 42) == 42
