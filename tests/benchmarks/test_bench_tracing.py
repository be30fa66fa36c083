"""`python -m bench.tracing`: what it compares, and its table."""

from __future__ import annotations

import json

from bench import tracing
from gpuring.cli.measure.crew import Crew
from gpuring.cli.measure.figures import Distribution, Figure
from tests import ROOT
from tests.helpers import commands


def test_one_of_the_builds_looks_at_nothing():
    """The text that this build leaves out is in the source."""
    header = (ROOT / "gpuring/native/core/trace.h").read_text()
    assert header.count(tracing.LOOK) == 1


def test_the_table_has_medians_and_the_middle_half_of_differences(tmp_path):
    figures = []
    for verb in tracing.VERBS:
        for way, ns in (("without", [20, 21, 22]), ("off", [20, 21, 24]), ("on", [48, 50, 51])):
            values = Distribution.of(ns)
            figures.append(Figure("tracing", verb, f"core, {way}", "ns", values=values))
        for way, ns in (("off - without", [-1, 0, 1]), ("on - off", [27, 29, 31])):
            values = Distribution.of(ns)
            figures.append(
                Figure("tracing", f"{verb}, difference", f"core, {way}", "ns", values=values)
            )
    path = tmp_path / "tracing.json"
    stored = {"machine": {}, "seconds": 1, "figures": [each.as_json() for each in figures]}
    path.write_text(json.dumps(stored))
    done = commands.module("bench.tracing", "--from", path)
    rows = done.stdout.splitlines()
    assert rows[2] == "| claim | 21.0 | 21.0 | 50.0 | −0.5 … 0.5 | 28.0 … 30.0 |"  # noqa: RUF001
    assert len(rows) == 6


def test_a_file_without_results_is_refused_in_a_sentence(tmp_path):
    done = commands.module("bench.tracing", "--from", tmp_path / "none")
    assert done.returncode == 1
    assert done.stderr == f"--from {tmp_path / 'none'}: No such file or directory\n"


def test_frames_in_python_are_measured_off_and_on():
    with Crew() as crew:
        off, on, more = tracing.in_python(crew, 3, [tracing.HOST])
    assert (off.program, on.program) == ("Python, off", "Python, on")
    assert more.values is not None
    assert off.values.n == on.values.n == more.values.n == 3
