"""The demo's verdict reports each fault that a run may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av", reason="gpuring[demo] is not installed")
pytest.importorskip("matplotlib", reason="gpuring[demo] is not installed")
pytest.importorskip("rich", reason="gpuring[demo] is not installed")
pytest.importorskip("PIL", reason="gpuring[demo] is not installed")


from gpuring.cli.demo import arithmetic, table, verdict
from gpuring.cli.demo.clip import SHIPPED, open_clip
from gpuring.cli.demo.records import Outcome, Report

FRAMES, SLOTS = 12, 8
Crew = dict[str, Report]


@pytest.fixture(scope="module")
def truth() -> verdict.Reference:
    return verdict.reference(replace(open_clip(SHIPPED, None), limit=FRAMES))


@pytest.fixture
def crew(truth: verdict.Reference) -> Crew:
    """Reports of a run of two loops without a fault."""
    at = np.arange(2 * FRAMES)

    def report(name: str, at: Any, columns: tuple[str, ...]) -> Report:
        seq = at + SLOTS
        lost = np.diff(seq, prepend=SLOTS - 1) - 1 if name == "viewer" else np.zeros_like(at)
        return Report(
            name=name,
            pid=1,
            seq=seq,
            pts=truth.pts[at % FRAMES],
            published_ns=at * 1000,
            latency_ns=np.full_like(at, 500),
            lost=lost,
            values=truth.expected(at, columns),
        )

    return {
        "producer": report("producer", at, ("checksum",)),
        "analyser": report("analyser", at, arithmetic.FRAME_COLUMNS),
        "edges 1": report("edges 1", at[::2], arithmetic.EDGE_COLUMNS),
        "edges 2": report("edges 2", at[1::2], arithmetic.EDGE_COLUMNS),
        "viewer": report("viewer", at[3::4], ("checksum",)),
    }


def judge(truth: verdict.Reference, crew: Crew) -> dict[str, verdict.Check]:
    edges = (crew["edges 1"], crew["edges 2"])
    judged = verdict.check(truth, 2, crew["producer"], crew["analyser"], edges, crew["viewer"])
    assert judged.passed == all(check.passed for check in judged.checks)
    return {check.who: check for check in judged.checks}


def pick(report: Report, indices: Any) -> Report:
    """The report with only these entries, in this order."""
    fields = ("seq", "pts", "published_ns", "latency_ns", "lost", "values")
    return replace(report, **{field: getattr(report, field)[indices] for field in fields})


def falsified(report: Report, row: int, column: int) -> Report:
    values = report.values.copy()
    values[row, column] ^= np.uint64(1)
    return replace(report, values=values)


def test_a_faultless_run_passes(truth, crew):
    checks = judge(truth, crew)
    assert all(check.passed for check in checks.values()), checks


def test_the_viewer_may_have_lost_one_sequence(truth, crew):
    crew["viewer"] = pick(crew["viewer"], slice(0, 1))
    crew["viewer"].lost[:] = 1
    told = judge(truth, crew)["viewer"].detail
    assert told.startswith("1 frame, each newer than the last, 1 sequence lost and counted;")


ALL = np.arange(2 * FRAMES)
SWAPPED = np.r_[0:4, 5, 4, 6 : 2 * FRAMES]
FALSE_PTS = np.r_[0 : 2 * FRAMES - 1, 0]

Spoil = Callable[[Report], Report]
FAULTS: list[tuple[str, str, Spoil, str]] = [
    *(
        ("analyser", "analyser", lambda r, c=c: falsified(r, 5, c), f"wrong {name} at sequence 13")
        for c, name in enumerate(arithmetic.FRAME_COLUMNS)
    ),
    ("analyser", "analyser", lambda r: pick(r, np.delete(ALL, 6)), "missing: sequence 14"),
    (
        "analyser",
        "analyser",
        lambda r: pick(r, np.insert(ALL, 6, 5)),
        "more than once: sequence 13",
    ),
    ("analyser", "analyser", lambda r: pick(r, SWAPPED), "out of order at sequence 12"),
    ("analyser", "analyser", lambda r: replace(r, seq=r.seq + 1), "never published: sequence 32"),
    ("analyser", "analyser", lambda r: replace(r, pts=r.pts + 1), "wrong pts at sequence 8"),
    ("analyser", "analyser", lambda r: replace(r, values=r.values[:, :2]), "shape (24, 2)"),
    *(
        (
            "edges 2",
            "edges",
            lambda r, c=c: falsified(r, 0, c),
            f"edges 2: wrong {name} at sequence 9",
        )
        for c, name in enumerate(arithmetic.EDGE_COLUMNS)
    ),
    ("edges 1", "edges", lambda r: pick(r, slice(1, None)), "missing: sequence 8"),
    ("edges 1", "edges", lambda r: replace(r, seq=r.seq + 1), "more than once: sequence 9, 11"),
    ("edges 1", "edges", lambda r: pick(r, np.r_[1, 0, 2:12]), "edges 1: sequences do not rise"),
    ("viewer", "viewer", lambda r: falsified(r, 2, 0), "viewer: wrong checksum at sequence 19"),
    ("viewer", "viewer", lambda r: pick(r, np.r_[0, 0, 1:6]), "not newer than the one before"),
    ("viewer", "viewer", lambda r: replace(r, lost=r.lost * 0), "lost frames miscounted"),
    ("viewer", "viewer", lambda r: replace(r, seq=r.seq + 100), "never published"),
    ("viewer", "viewer", lambda r: pick(r, slice(0, 0)), "no frame at all"),
    ("producer", "producer", lambda r: pick(r, FALSE_PTS), "sequences do not rise"),
    ("producer", "producer", lambda r: replace(r, pts=r.pts[::-1]), "pts differ from the clip's"),
    ("producer", "producer", lambda r: pick(r, ALL[:-1]), "23 frames published, the clip has 24"),
]


@pytest.mark.parametrize(
    ("report", "who", "spoil", "said"), FAULTS, ids=[f"{f[0]}: {f[3]}" for f in FAULTS]
)
def test_each_fault_is_reported(truth, crew, report, who, spoil, said):
    crew[report] = spoil(crew[report])
    check = judge(truth, crew)[who]
    assert not check.passed
    assert said in check.detail


def test_a_run_in_which_nothing_was_seen_fails(truth, crew):
    empty = {name: pick(report, slice(0, 0)) for name, report in crew.items()}
    checks = judge(truth, empty)
    assert not checks["producer"].passed
    assert not checks["viewer"].passed


def outcome_of(crew: Crew) -> Outcome:
    return Outcome(
        clip=open_clip(SHIPPED, FRAMES),
        memory="host",
        sync="host",
        gate="stream",
        slots=SLOTS,
        fps=None,
        producer=crew["producer"],
        analyser=crew["analyser"],
        edges=(crew["edges 1"], crew["edges 2"]),
        viewer=crew["viewer"],
        max_lag={"analyser": 0, "edges": 0, "viewer": 0},
    )


@pytest.mark.parametrize("width", [60, 120])
def test_the_table_fits_and_cuts_nothing_off(crew, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = str(table.final(outcome_of(crew)))
    assert "…" not in shown, shown
    assert all(len(line) <= width for line in shown.splitlines())
    assert all(name in shown for name in ("producer", "analyser", "edges 2", "lossy, newest"))
    assert ("not shown" in shown) == (width < 80), shown
