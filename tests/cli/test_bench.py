"""`gpuring bench`: what it reports, what it refuses to report, and what a run is made of.

The figures themselves are not checked here: no test asserts an absolute time.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpuring
from gpuring.cli import bench, main
from gpuring.cli.bench import summary, throughput
from gpuring.cli.measure import settings, stored
from gpuring.cli.measure.attempt import Wrong
from gpuring.cli.measure.figures import QUANTILES, Distribution, Figure
from gpuring.cli.measure.kernels import DriverKernel
from gpuring.cli.measure.patterns import HostPattern
from gpuring.cli.measure.stored import Run
from tests.helpers.figures import spread


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    left = [path.name for path in Path("/dev/shm").glob(f"gpuring*bench-{os.getpid()}-*")]
    assert not left


# ---- the command --------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch):
    whole = bench.measure

    def part(device, *, spoil=False):
        return whole(device, spoil=spoil, scale=0.1)

    monkeypatch.setattr(bench, "measure", part)


@pytest.mark.slow
def test_the_command_measures_verifies_and_says_what_is_good(short, tmp_path, capsys):
    path = tmp_path / "bench.json"
    assert main(["bench", "--device", "host", "--json", str(path)]) == 0
    run = stored.load(path)
    assert [figure for figure in run.figures if figure.skipped] == []
    assert all(figure.verified for figure in run.figures)
    assert {f.program for f in run.figures} == {"gpuring", "bare word", "two pipes", "pipe"}
    assert run.machine["cpu"]
    keys = [(f.group, f.name, f.program, tuple(sorted(f.setting.items()))) for f in run.figures]
    assert len(keys) == len(set(keys)), "two figures with one setting cannot be told apart"
    printed = capsys.readouterr().out
    assert printed.rstrip("\n") == summary.text(run)
    for word in ("one-way latency p50", "throughput", "wake-up p50", "ratio", "good"):
        assert word in printed
    assert "not compared" not in printed
    again = main(["bench", "--from", str(path)])
    assert (again, capsys.readouterr().out) == (0, printed)


@pytest.mark.slow
def test_a_damaged_frame_fails_everything_that_the_ring_is_measured_with(short):
    """Each checker fails here."""
    found = list(bench.measure("host", spoil=True))
    ours = [figure for figure in found if figure.program == "gpuring"]
    assert [figure.name for figure in ours if not figure.failed] == []
    assert len(ours) >= 5
    run = Run({}, found, 1)
    assert run.status == 1
    assert "WRONG DATA" in summary.text(run)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--from", "nosuch.json"], "--from nosuch.json: No such file or directory"),
        (["--from", "other.json"], "--from other.json: this file has no results of a benchmark"),
        (["--json", "nosuch/x.json"], "--json nosuch/x.json: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_measured(
    options, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "measure", None)
    for text in ("[1]", '{"figures": [{"group": 1}], "machine": {}, "seconds": 1}', "no json"):
        Path("other.json").write_text(text)
        assert main(["bench", *options]) == 1
        assert capsys.readouterr().err.startswith(f"gpuring bench: {said}")


def test_a_gpu_that_is_asked_for_and_not_there(monkeypatch, capsys):
    monkeypatch.setattr(bench, "why_no_gpu", no_gpu)
    assert main(["bench", "--device", "cuda"]) == 1
    assert capsys.readouterr().err == "gpuring bench: --device cuda: there is none\n"


def no_gpu(pipe):
    return "there is none"


def test_ctrl_c_keeps_what_there_was(tmp_path):
    def interrupted():
        yield Figure("latency", "one-way", "gpuring", "µs", {"sync": "host"}, spread(3))
        os.kill(os.getpid(), signal.SIGTERM)
        yield Figure("latency", "never", "gpuring", "µs")

    run = stored.measured(interrupted(), ["--quick"], lambda figure: None)
    run.save(tmp_path / "x.json")
    again = stored.load(tmp_path / "x.json")
    assert [figure.name for figure in again.figures] == ["one-way"]
    assert (run.status, again.machine["interrupted"]) == (130, True)
    assert again.machine["asked for"] == "--quick"


# ---- the summary --------------------------------------------------------------------------------


def one_way(program, us, n=2000, **where):
    where = {"sync": "host", "kernel": False, "busy": False} | where
    return Figure("latency", "one-way", program, "µs", where, spread(us, n))


def text_of(*figures, **card):
    rate = Figure(
        "throughput", "frames/s", "gpuring", "frames/s",
        {**summary.RATE, **figures[0].setting}, spread(1234567, 40),
    )  # fmt: skip
    return summary.text(Run(card, [rate, *figures], 9))


def test_the_verdict_is_a_ratio_to_the_baseline():
    good = text_of(one_way("gpuring", 5), one_way("bare word", 0.5))
    assert "On host memory: 2 good, 1 not compared" in good
    assert "good (≤ 10 ×)" in good
    assert "1,230,000/s" in good
    bad = text_of(one_way("gpuring", 6), one_way("bare word", 0.5))
    assert "2 NOT good, 1 not compared" in bad


def test_on_a_gpu_the_lack_of_mps_is_explained_where_it_shows():
    def said(us, mps):
        where = {"sync": "timeline", "kernel": True, "gate": "stream", "mps": mps}
        return text_of(one_way("gpuring", us, **where), one_way("bare word", 100, **where))

    assert "On a GPU (sync=timeline, MPS off): 2 NOT good" in said(160, False)
    assert "nvidia-cuda-mps-control -d" in said(160, False)
    assert "nvidia-cuda-mps-control" not in said(140, False)
    assert "nvidia-cuda-mps-control" not in said(160, True)


def test_no_line_is_wider_than_80_columns():
    where = {"sync": "timeline", "kernel": True, "gate": "stream", "mps": False}
    launch = Figure("transitions", "kernel launch", "cuda-bindings", "ns", {}, spread(3600))
    ours = Figure(
        "transitions", "host time per frame", "gpuring", "ns",
        {**where, "kernel": False, "side": "producer"}, spread(1.2e3),
    )  # fmt: skip
    skipped = Figure("waiting", "wake-up", "pipe", "µs", skipped="a long reason " * 20)
    said = text_of(
        one_way("gpuring", 123456, **where), one_way("bare word", 123456, **where), ours, launch,
        skipped, cpu="A Processor of a Very Long Name " * 3, gpus=[{"name": "NVIDIA H200"}],
    )  # fmt: skip
    assert "host time" in said
    assert max(map(len, said.splitlines())) <= 80


def test_quantities_have_three_digits_and_a_fitting_unit():
    for value, unit, said in (
        (1234, "ns", "1.23 µs"), (0.5361, "µs", "536 ns"), (2.5, "ms", "2.5 ms"),
        (1300, "µs", "1.3 ms"), (277, "µs", "277 µs"), (2950123, "frames/s", "2,950,000/s"),
        (61.4, "frames/s", "61.4/s"), (123456, "ms", "123,000 ms"), (99.96, "µs", "100 µs"),
    ):  # fmt: skip
        assert summary.quantity(value, unit) == said


@pytest.mark.parametrize(
    ("ours", "shown", "word"), [(10.04, "10 ×", "good"), (10.1, "10.1 ×", "NOT good")]
)
def test_a_ratio_is_judged_as_it_is_shown(ours, shown, word):
    latency = summary.HOST[0]
    assert (latency.bound, latency.at_least) == (10, False)
    figures = (
        Figure("latency", "one-way", who, "µs", {}, spread(n))
        for who, n in (("gpuring", ours), ("bare word", 1))
    )
    row, *_ = summary._rows(latency, *figures)
    assert row.cells[-2:] == (shown, f"{word} (≤ 10 ×)")


# ---- what a run is made of ----------------------------------------------------------------------


def test_missing_frames_are_noticed():
    load = throughput.Load(settings.HOST)
    books = {"subscription": 0, "frames": 10, "wrong": 0}
    throughput._check_books(load, 10, [books])
    with pytest.raises(Exception, match="11 frames published, 10 read"):
        throughput._check_books(load, 11, [books])
    with pytest.raises(Exception, match="1 words differ"):
        throughput._check_books(load, 10, [{**books, "wrong": 1}])


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
            assert pattern.wrong() == 0, "nothing is said after the first words"
            pattern.check_all(slot)
            assert pattern.wrong() == 512


def test_a_kernel_launch_passes_its_arguments(monkeypatch):
    """cuLaunchKernel reads an array of pointers to 64-bit arguments."""
    launched = []

    def launch(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        pointers = (ctypes.c_void_p * 4).from_address(parameters)
        arguments = [ctypes.c_uint64.from_address(each).value for each in pointers]
        launched.append((function, gx, bx, stream, arguments))
        return (0,)

    driver = SimpleNamespace(CUfunction=int, CUstream=int, cuLaunchKernel=launch)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=None))
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=driver))
    kernel = DriverKernel(77, 5, 0, 512, 0, 1 << 60)
    kernel.launch(1 << 47, 9)
    kernel.launch(1 << 46, 10)
    kernel.launch_over(1 << 45, 1025, 11)
    assert launched == [
        (77, 1, 256, 5, [1 << 47, 512, 9, 1 << 60]),
        (77, 1, 256, 5, [1 << 46, 512, 10, 1 << 60]),
        (77, 5, 256, 5, [1 << 45, 1025, 11, 1 << 60]),
    ]


# ---- figures ------------------------------------------------------------------------------------


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


def test_a_percentile_needs_ten_samples_beyond_it():
    for n, given in (
        (19, []),
        (40, [25]),
        (100, [10]),
        (999, [10]),
        (1000, [10, 99]),
        (10_000, [99.9]),
    ):
        values = Distribution.of(np.arange(n))
        assert values.given(50) == values.p50
        for quantile in given:
            assert values.given(quantile) == values.p(quantile)
    assert Distribution.of(np.arange(39)).given(25) is None
    assert Distribution.of(np.arange(999)).given(99) is None
    assert Distribution.of(np.arange(999)).given(1) is None
    assert Distribution.of(np.arange(9999)).given(99.9) is None


def test_rates_of_several_producers_add_up():
    """There are two producers with a stride each millisecond.  One begins later than the other."""
    steady = [int(k * 1e6) for k in range(300)]
    late = [t + 400_000 for t in steady]
    rates = throughput.rates_of([steady, late])
    assert len(rates) == throughput.BINS
    assert rates == pytest.approx(2 * throughput.STRIDE * 1000)


def test_a_producer_that_got_no_core_for_a_while_is_counted_for_what_it_did():
    """In the 200 ms that count, one of them publishes 200 strides and the other one publishes
    one."""
    steady = [int(k * 1e6) for k in range(301)]
    rates = throughput.rates_of([steady, [*steady[:101], steady[-1]]])
    assert rates.mean() == pytest.approx(201 * throughput.STRIDE / 0.2)


def test_a_starved_producer_goes_on_until_it_can_be_measured():
    """It publishes many strides at once, and then hardly any.  If it ended there, nothing could be
    measured."""
    marks = [k * 1_000 for k in range(30)] + [40_000_000]
    with pytest.raises(Wrong, match="strides"):
        throughput.rates_of([marks])
    while not throughput.enough(marks):
        marks.append(marks[-1] + 40_000_000)
        assert len(marks) < 50
    assert throughput.rates_of([marks]) == pytest.approx(throughput.STRIDE / 0.040)
