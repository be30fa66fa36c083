"""The demo's plot can be understood by somebody who sees it for the first time."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("av", reason="gpuring[demo] is not installed")
pytest.importorskip("matplotlib", reason="gpuring[demo] is not installed")
pytest.importorskip("PIL", reason="gpuring[demo] is not installed")

import matplotlib as mpl

from gpuring.cli.demo import arithmetic
from gpuring.cli.demo.clip import SHIPPED, open_clip
from gpuring.cli.demo.pictures import latency_plot
from gpuring.cli.demo.records import Outcome, Report


@pytest.mark.parametrize(("least_us", "most_us"), [(210, 480), (600, 4_000), (3, 700_000)])
def test_latencies_are_labelled_in_plain_units(tmp_path, least_us, most_us):
    """A logarithmic axis is often labelled with powers, such as 4 × 10²."""
    at = np.arange(20)

    def report(name: str, columns: int) -> Report:
        return Report(
            name=name,
            pid=1,
            seq=at + 8,
            pts=at,
            published_ns=at * 1000,
            latency_ns=np.geomspace(least_us * 1000, most_us * 1000, len(at)).astype(np.int64),
            lost=np.zeros_like(at),
            values=np.zeros((len(at), columns), np.uint64),
        )

    names = ("producer", "analyser", "edges 1", "edges 2", "viewer")
    reports = {name: report(name, len(arithmetic.FRAME_COLUMNS)) for name in names}
    outcome = Outcome(
        clip=open_clip(SHIPPED, None), memory="host", sync="host", gate="stream", slots=8, fps=25,
        producer=reports["producer"], analyser=reports["analyser"],
        edges=(reports["edges 1"], reports["edges 2"]), viewer=reports["viewer"],
        max_lag=dict.fromkeys(names, 0),
    )  # fmt: skip
    plot = tmp_path / "latency.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        latency_plot(plot, outcome)
    found = (each for each in ElementTree.parse(plot).iter() if each.tag.endswith("}text"))
    texts = ["".join("".join(each.itertext()).split()) for each in found]
    labels = texts[: texts.index("latency")]  # those of the axis come before its name
    assert len(labels) >= 2
    assert [label for label in labels if not re.fullmatch(r"\d+(µs|ms|s)", label)] == []
