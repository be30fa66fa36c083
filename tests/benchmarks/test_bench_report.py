"""`python -m bench`: its command, its report and its targets.  No absolute time is asserted."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import bench
from bench import __main__ as command
from bench import measure, mps, throughput
from bench.targets import find, judge, one_more_consumer_us
from gpuring.cli.measure.attempt import attempt, expect_right
from gpuring.cli.measure.figures import Distribution, Figure, line
from gpuring.cli.measure.mps import CONTROL, installed, reachable
from gpuring.cli.measure.settings import Settings
from gpuring.cli.measure.stored import load
from tests import ROOT
from tests.helpers.figures import spread

RESULTS = ROOT / "bench" / "results"
SHORT = 0.05


def options(*only, **more):
    """The options as the command line gives them."""
    asked = ["--quick", "--device", "host", *(["--only", *only] if only else [])]
    args = command.parser().parse_args(asked)
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
def test_the_command_writes_json_and_a_page(tmp_path, capsys):
    asked = ["--quick", "--device", "host", "--only", "recovery"]
    assert command.main([*asked, "--out", str(tmp_path)]) == 0
    figures = load(tmp_path / "bench.json").figures
    measured = [figure for figure in figures if figure.values is not None]
    assert {figure.name for figure in measured} == {"recovery from SIGKILL"}
    assert all(figure.verified for figure in measured)
    page = (tmp_path / "report.html").read_text()
    assert "recovery from SIGKILL" in page
    assert "report.html" in capsys.readouterr().out


def test_every_module_can_be_imported_without_a_gpu():
    found = [each.name for each in pkgutil.walk_packages(bench.__path__, "bench.")]
    assert len(found) >= 20
    if find_spec("torch") is None:
        found = [name for name in found if name not in ("bench.by_hand", "bench.loader")]
    if find_spec("jinja2") is None:
        found = [name for name in found if name not in ("bench.page", "bench.whole")]
    for name in found:
        importlib.import_module(name)


@pytest.mark.slow
def test_every_host_benchmark_measures():
    found = list(measure.measure(options(), scale=0.1))
    failed = [figure for figure in found if figure.values is None and figure.name != "on a GPU"]
    assert [line(figure) for figure in failed if "no C compiler" not in figure.skipped] == []
    assert {figure.group for figure in found} >= set(measure.OURS)
    keys = [(f.group, f.name, f.program, tuple(sorted(f.setting.items()))) for f in found]
    assert len(keys) == len(set(keys)), "two figures with one setting cannot be told apart"


@pytest.mark.slow
def test_a_damaged_frame_fails_every_benchmark():
    """The checkers are seen to fail.  A lossy reader may miss the damaged frame."""
    for figure in measure.measure(options(*measure.OURS, spoil=True), scale=SHORT):
        if figure.program == "gpuring" and figure.setting.get("lossless", True):
            assert figure.failed or figure.name == "on a GPU", line(figure)


def test_a_run_with_wrong_data_exits_with_1(tmp_path, monkeypatch, capsys):
    blank = Figure("recovery", "recovery from SIGKILL", "gpuring", "ms")

    def wrong(args):
        assert args.spoil
        yield from attempt(blank, lambda: [expect_right(5)])

    monkeypatch.setattr(command, "measure", wrong)
    asked = ["--quick", "--device", "host", "--only", "recovery", "--spoil"]
    kept = tmp_path / "kept.json"
    assert command.main([*asked, "--out", str(tmp_path), "--json", str(kept)]) == 1
    assert load(kept).failed
    assert not (tmp_path / "bench.json").exists()
    assert "verification failed" in capsys.readouterr().err
    assert "Wrong data crossed" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--from", "nosuch.json"], "--from nosuch.json: No such file or directory"),
        (["--out", "file/x"], "--out file/x: Not a directory"),
        (["--device", "cuda", "--out", "x"], "--device cuda: "),
    ],
)
def test_what_cannot_be_done_is_said_in_terms_of_options(
    asked, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "why_no_gpu", no_gpu)
    Path("file").write_text("")
    assert command.main(asked) == 1
    assert capsys.readouterr().err.startswith(f"python -m bench: {said}")


def no_gpu(pipe):
    return "there is none"


@pytest.mark.slow
def test_a_benchmark_that_raises_does_not_end_the_run(monkeypatch):
    def explode(settings, crew):
        raise ImportError("no such library")

    monkeypatch.setattr(throughput, "run", explode)
    found = list(measure.measure(options("throughput", "recovery"), scale=SHORT))
    assert any(figure.skipped == "ImportError: no such library" for figure in found)
    assert any(figure.group == "recovery" and figure.values is not None for figure in found)


def test_mps_that_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not installed()
    assert not reachable()
    with pytest.raises(mps.NoMps, match="nvidia-cuda-mps-control"), mps.daemon():
        pass


@pytest.mark.parametrize(
    ("asked", "is_reachable", "is_installed", "both", "measured"),
    [
        ("off", True, True, True, (False,)),
        ("on", False, False, True, (True,)),
        ("both", False, False, False, (False, True)),
        (None, True, True, True, (True,)),
        (None, False, True, True, (False, True)),
        (None, False, True, False, (False,)),
        (None, False, False, True, (False,)),
    ],
)
def test_the_modes_that_are_asked_for_are_measured(
    monkeypatch, asked, is_reachable, is_installed, both, measured
):
    monkeypatch.setattr(mps, "reachable", lambda: is_reachable)
    monkeypatch.setattr(mps, "installed", lambda: is_installed)
    assert mps.modes(asked, both=both) == measured


def test_an_mps_daemon_gets_its_own_directory_and_is_ended(monkeypatch, tmp_path):
    log = tmp_path / "log"
    control = tmp_path / CONTROL
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


# ---- the report ---------------------------------------------------------------------------------


def test_a_page_from_json_alone(tmp_path, capsys):
    stored = tmp_path / "old.json"
    figure = Figure("latency", "round trip", "gpuring", "µs", {"sync": "host"}, spread(7))
    stored.write_text(
        json.dumps({"machine": {"cpu": "<8086>"}, "seconds": 3, "figures": [figure.as_json()]})
    )
    assert command.main(["--from", str(stored), "--out", str(tmp_path / "new")]) == 0
    page = (tmp_path / "new" / "report.html").read_text()
    assert "&lt;8086&gt;" in page
    assert "round trip" in page


@pytest.mark.slow
def test_the_stored_run_leads_with_figures_beside_the_baseline(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert command.main(["--from", str(RESULTS / "bench.json"), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines()[:-1])) <= 80
    page = (tmp_path / "report.html").read_text()
    head = page.partition("<h2>")[0]
    for kind in ("host memory", "sync=timeline, MPS off", "sync=event, MPS on"):
        assert kind in head
    assert "one-way latency p99" in head
    assert "leanest ring in C" in head
    assert "http" not in page.replace("http://www.w3.org", ""), "the page must need no network"
    names = {path.stem for path in tmp_path.glob("*.svg")}
    assert names == {path.stem for path in (ROOT / "docs" / "performance").glob("*.svg")}


def test_the_sweep_has_every_load_once():
    asked = list(throughput.loads(Settings()))
    assert len(asked) > 20
    assert {load.place.sync for load in asked} == {"host"}


# ---- targets ------------------------------------------------------------------------------------


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
    start = "round trip p50, a kernel each side, MPS off, against the baseline in C"
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
    found = verdict(
        figures, "host time per frame, producer, no kernel, MPS on, against the baseline in C"
    )
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
