"""`gpuring bench`: what it reports, what it refuses to report, and that it goes on.

Its figures are not judged here: no absolute time is asserted.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpuring
from gpuring.cli import bench, main
from gpuring.cli.bench import mps, report, settings, throughput
from gpuring.cli.bench.attempt import Wrong, attempt
from gpuring.cli.bench.crew import Crew, RoleFailed
from gpuring.cli.bench.figures import QUANTILES, Distribution, Figure
from gpuring.cli.bench.patterns import DriverKernel, HostPattern
from gpuring.cli.bench.targets import find, judge, one_more_consumer_us

SHORT = settings.Settings(quick=True, scale=0.1)


def figures_of(path):
    stored = json.loads((path / "bench.json").read_text())
    return [Figure.from_json(each) for each in stored["figures"]]


def options(*only, **more):
    """What the command line would have made."""
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    args = parser.parse_args(["--quick", "--memory", "host", *(["--only", *only] if only else [])])
    for key, value in more.items():
        setattr(args, key, value)
    return args


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    left = [path.name for path in Path("/dev/shm").glob(f"gpuring.bench-{os.getpid()}-*")]
    assert not left


# ---- the command --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.deadline(60)
def test_the_command_writes_json_and_a_page(tmp_path, capsys):
    asked = ["bench", "--quick", "--memory", "host", "--only", "latency", "recovery"]
    assert main([*asked, "--report", str(tmp_path)]) == 0
    figures = figures_of(tmp_path)
    measured = {figure.name for figure in figures if figure.values is not None}
    assert measured == {"round trip", "one-way", "recovery from SIGKILL"}
    assert all(figure.verified for figure in figures if figure.values is not None)
    assert {figure.skipped for figure in figures if figure.values is None} == {
        "not asked for (--memory host)"
    }
    page = (tmp_path / "report.html").read_text()
    assert "round trip" in page
    assert "http" not in page, "the page must not need the network"
    assert "report.html" in capsys.readouterr().out


@pytest.mark.deadline(90)
def test_every_host_benchmark_measures(capsys):
    found = list(bench.measure(options(), scale=0.1))
    failed = [figure for figure in found if figure.values is None and figure.name != "on a GPU"]
    assert [report.line(figure) for figure in failed if "no C compiler" not in figure.skipped] == []
    assert {figure.group for figure in found} >= set(bench.OURS)
    keys = [(f.group, f.name, f.program, tuple(sorted(f.setting.items()))) for f in found]
    assert len(keys) == len(set(keys)), "two figures with one setting cannot be told apart"


@pytest.mark.slow
@pytest.mark.deadline(90)
def test_a_damaged_frame_fails_every_benchmark():
    """The checkers are seen to fail.  A lossy reader may miss the damaged frame."""
    for figure in bench.measure(options(*bench.OURS, spoil=True), scale=0.05):
        if figure.program == "gpuring" and figure.setting.get("lossless", True):
            assert figure.failed or figure.name == "on a GPU", report.line(figure)


@pytest.mark.slow
def test_a_run_with_wrong_data_exits_with_1(tmp_path, capsys):
    asked = ["bench", "--quick", "--memory", "host", "--only", "recovery", "--spoil"]
    assert main([*asked, "--report", str(tmp_path)]) == 1
    assert "verification failed" in capsys.readouterr().err
    assert "Wrong data crossed" in (tmp_path / "report.html").read_text()


def test_a_page_from_json_alone(tmp_path, capsys):
    stored = tmp_path / "old.json"
    figure = Figure("latency", "round trip", "gpuring", "µs", {"sync": "host"}, spread(7))
    stored.write_text(
        json.dumps({"machine": {"cpu": "<8086>"}, "seconds": 3, "figures": [figure.as_json()]})
    )
    assert main(["bench", "--from", str(stored), "--report", str(tmp_path / "new")]) == 0
    page = (tmp_path / "new" / "report.html").read_text()
    assert "&lt;8086&gt;" in page
    assert "round trip" in page


def test_the_page_needs_no_matplotlib(monkeypatch):
    monkeypatch.setattr(report.plots, "available", lambda: False)
    page = report.html({}, [], 1)
    assert "Plots are left out" in page
    assert "<img" not in page


# ---- failures -----------------------------------------------------------------------------------


def die(pipe):
    os.kill(os.getpid(), 9)


def complain(pipe):
    raise ValueError("one line\nand the last one")


def answer(pipe, what):
    return what


def environment(pipe, name):
    return os.environ.get(name)


@pytest.mark.parametrize(("role", "why"), [(die, "it died"), (complain, "and the last one")])
def test_a_dead_role_is_reported_and_the_run_goes_on(role, why):
    blank = Figure("latency", "round trip", "gpuring", "µs")
    with Crew() as crew:

        def measure():
            yield Figure("latency", "other", "gpuring", "µs", values=spread(1))
            crew.call(role)

        (figure,) = attempt(blank, measure)  # nothing of a run that failed is reported
        assert figure.name == "round trip"
        assert figure.skipped.endswith(why)
        assert not figure.failed
        assert crew.call(answer, 42) == 42


@pytest.mark.slow
def test_a_benchmark_that_raises_does_not_end_the_run(monkeypatch):
    def explode(settings, crew):
        raise ImportError("no such library")

    monkeypatch.setattr(throughput, "run", explode)
    found = list(bench.measure(options("throughput", "recovery"), scale=0.05))
    assert any(figure.skipped == "ImportError: no such library" for figure in found)
    assert any(figure.group == "recovery" and figure.values is not None for figure in found)


def test_missing_frames_are_noticed():
    load = throughput.Load(settings.HOST)
    books = {"subscription": 0, "frames": 10, "wrong": 0}
    throughput._check_books(load, 10, [books])
    with pytest.raises(Exception, match="11 frames published, 10 read"):
        throughput._check_books(load, 11, [books])
    with pytest.raises(Exception, match="1 words differ"):
        throughput._check_books(load, 10, [{**books, "wrong": 1}])


def test_workers_have_the_environment_asked_for():
    with Crew({"CUDA_MPS_PIPE_DIRECTORY": "/here"}) as crew:
        assert crew.call(environment, "CUDA_MPS_PIPE_DIRECTORY") == "/here"
    with Crew() as crew, pytest.raises(RoleFailed):
        crew.call(die)


def test_mps_that_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not mps.installed()
    assert not mps.reachable()
    with pytest.raises(mps.NoMps, match="nvidia-cuda-mps-control"), mps.daemon():
        pass


def test_an_mps_daemon_gets_its_own_directory_and_is_ended(monkeypatch, tmp_path):
    log = tmp_path / "log"
    control = tmp_path / mps.CONTROL
    control.write_text(
        f'#!/bin/sh\necho "$1 $CUDA_MPS_PIPE_DIRECTORY" >> {log}\n'
        f'[ "$1" = -d ] || while read -r line; do echo "told $line" >> {log}; done\n'
    )
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with mps.daemon() as environment:
        pipe = environment["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(pipe).is_dir()
        assert log.read_text().startswith(f"-d {pipe}\n")
    assert "told quit" in log.read_text()
    assert not Path(pipe).exists()


def test_the_pattern_tells_frames_apart(name):
    with (
        gpuring.create(name, slots=2, shape=(1024,), dtype="u8", device="host") as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):
        pattern = HostPattern()
        with producer.claim() as slot:
            pattern.stamp_all(slot)
        with consumer.acquire() as slot:
            pattern.check_all(slot)
            assert pattern.wrong() == 0
        with producer.claim() as slot:
            pattern.stamp(slot)
        with consumer.acquire() as slot:
            pattern.check(slot)
            assert pattern.wrong() == 0, "beyond the first words nothing is said"
            pattern.check_all(slot)
            assert pattern.wrong() == 512


def test_a_kernel_launch_passes_its_arguments(monkeypatch):
    """As cuLaunchKernel reads them: an array of pointers to 64-bit arguments."""
    launched = []

    def launch(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        pointers = (ctypes.c_void_p * 4).from_address(parameters)
        arguments = [ctypes.c_uint64.from_address(each).value for each in pointers]
        launched.append((function, gx, bx, stream, arguments))
        return (0,)

    driver = SimpleNamespace(CUfunction=int, CUstream=int, cuLaunchKernel=launch)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=None))
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=driver))
    function = SimpleNamespace(kernel=SimpleNamespace(ptr=77))
    kernel = DriverKernel(function, SimpleNamespace(ptr=5), 0, 512, 0, 1 << 60)
    kernel.launch(1 << 47, 9)
    kernel.launch(1 << 46, 10)
    kernel.launch_over(1 << 45, 1025, 11)
    assert launched == [
        (77, 1, 256, 5, [1 << 47, 512, 9, 1 << 60]),
        (77, 1, 256, 5, [1 << 46, 512, 10, 1 << 60]),
        (77, 5, 256, 5, [1 << 45, 1025, 11, 1 << 60]),
    ]


# ---- figures ------------------------------------------------------------------------------------


def spread(value):
    return Distribution.of(np.full(10, float(value)))


def test_percentiles():
    found = Distribution.of(np.arange(1001))
    assert (found.n, found.p50, found.p(99), found.p(99.9)) == (1001, 500, 990, 999)
    assert (found.p(0), found.p(100), len(found.percentiles)) == (0, 1000, len(QUANTILES))
    with pytest.raises(ValueError, match="at least one"):
        Distribution.of([])


def test_a_figure_survives_json():
    for figure in (
        Figure("waiting", "wake-up", "gpuring", "µs", {"sync": "host"}, spread(3), "how"),
        Figure("floor", "all", "floor", "", skipped="no compiler"),
    ):
        assert Figure.from_json(json.loads(json.dumps(figure.as_json()))) == figure


def test_rates_of_several_producers_add_up():
    """Two producers with a stride each millisecond, one of them later than the other."""
    steady = [int(k * 1e6) for k in range(300)]
    late = [t + 400_000 for t in steady]
    rates = throughput._rates([steady, late])
    assert len(rates) == throughput.BINS
    assert rates == pytest.approx(2 * throughput.STRIDE * 1000)


def test_a_starved_producer_goes_on_until_it_can_be_measured():
    """Many strides at once, then hardly any: stopping there would leave nothing to measure."""
    marks = [k * 1_000 for k in range(30)] + [40_000_000]
    with pytest.raises(Wrong, match="strides"):
        throughput._rates([marks])
    while not throughput._enough(marks):
        marks.append(marks[-1] + 40_000_000)
        assert len(marks) < 50
    assert throughput._rates([marks]) == pytest.approx(throughput.STRIDE / 0.040)


def test_find_wants_all_of_gpurings_setting_but_not_of_others():
    ours = Figure("throughput", "frames/s", "gpuring", "frames/s", {"slots": 8}, spread(1))
    queue = Figure("throughput", "frames/s", "a queue", "frames/s", {}, spread(1))
    assert find([ours], "frames/s", {"slots": 8}) is ours
    assert find([ours], "frames/s", {"slots": 8, "sync": "event"}) is None
    assert find([queue], "frames/s", {"slots": 8}, "a queue") is queue
    assert find([ours, queue], "frames/s", {"slots": 4}) is None


def verdict(figures, start):
    (found,) = [each for each in judge(figures) if each.name.startswith(start)]
    return found


def trip(program, us, **more):
    setting = {"sync": "timeline", "gate": "stream", "kernel": True, "busy": False, "mps": False}
    return Figure("latency", "round trip", program, "µs", {**setting, **more}, spread(us))


def test_targets_take_the_worst_ratio_of_the_run():
    start = "round trip p50, a kernel each side, MPS off, against the floor"
    assert verdict([trip("gpuring", 10)], start).met is None
    good = [trip("gpuring", 10.5), trip("floor", 10)]
    assert (verdict(good, start).value, verdict(good, start).met) == (pytest.approx(1.05), True)
    bad = [*good, trip("gpuring", 30, sync="event"), trip("floor", 10, sync="event")]
    assert (verdict(bad, start).value, verdict(bad, start).met) == (pytest.approx(3), False)
    other = [*good, trip("gpuring", 30, mps=True), trip("floor", 10, mps=True)]
    assert verdict(other, start).value == pytest.approx(1.05)


def test_targets_compare_units():
    where = {"sync": "event", "gate": "stream", "side": "producer", "kernel": False, "mps": True}
    figures = [
        Figure("transitions", "host time per frame", "gpuring", "ns", where, spread(1500)),
        Figure("transitions", "host time per frame", "floor", "µs", where, spread(1)),
        Figure("throughput", "host time per frame", "floor", "µs", where, spread(9)),
    ]
    found = verdict(figures, "host time per frame, producer, no kernel, MPS on, against the floor")
    assert (found.value, found.met) == (pytest.approx(1.5), True)


def test_one_more_consumer_is_a_slope():
    def cost(consumers, ns, loaded=False):
        where = {"sync": "host", "consumers": consumers, "loaded": loaded}
        return Figure("transitions", "producer's host cost", "gpuring", "ns", where, spread(ns))

    figures = [cost(1, 500), cost(2, 600), cost(4, 800), cost(4, 9000, loaded=True)]
    assert one_more_consumer_us(figures, loaded=False, sync="host") == pytest.approx(0.1)
    assert one_more_consumer_us(figures, loaded=True, sync="host") is None
    assert verdict(figures, "one more lossless consumer").met is True


def test_the_size_of_a_frame_must_not_matter():
    def rate(nbytes, values):
        where = {"sync": "timeline", "slots": 8, "nbytes": nbytes}
        values = Distribution.of(values)
        return Figure("throughput", "frames/s", "gpuring", "frames/s", where, values)

    noisy = np.linspace(900, 1100, 101)
    start = "a frame of 1 GiB"
    assert verdict([rate(4096, noisy), rate(1 << 30, noisy - 50)], start).met is True
    assert verdict([rate(4096, noisy), rate(1 << 30, noisy / 2)], start).met is False
