"""`python -m bench.bridge` measures what arrived, and notices what is wrong with it."""

from __future__ import annotations

import json

import pytest

from bench.bridge import table
from bench.bridge.__main__ import main
from bench.bridge.carriers import CARRIERS
from bench.bridge.measure import carried
from gpuring.cli.bench import stored
from gpuring.cli.bench.attempt import Wrong
from gpuring.cli.bench.crew import Crew
from gpuring.cli.bench.figures import Distribution, Figure

BRIDGE = "bridge, zmq"


@pytest.mark.slow
def test_a_short_run(tmp_path):
    pytest.importorskip("zmq")
    out = tmp_path / "run.json"
    options = ["--quick", "--rounds=1", "--seconds=0.1", f"--json={out}"]
    assert main([*options, "--only", "sockets", "ZeroMQ", BRIDGE]) == 0
    run = stored.load(out)
    assert not [figure for figure in run.figures if figure.skipped]
    found = {(figure.program, figure.name) for figure in run.figures}
    for program in ("sockets", "ZeroMQ", BRIDGE):
        assert {(program, name) for name in ("throughput", "CPU near", "CPU far")} <= found
    assert (BRIDGE, "CPU over its engine's own") in found
    assert "cores" in json.loads(out.read_text())["machine"]
    assert table.text(run.figures).count("| 64 KiB |") == 3


@pytest.mark.slow
def test_a_wrong_word_is_noticed():
    sockets = next(each for each in CARRIERS if each.name == "sockets")
    with Crew() as crew, carried(sockets, crew, 4096, 4) as between:
        between.send("verify", 8)
        with pytest.raises(Wrong, match="8 words differ"):
            between.send("spoil", 8)


def test_the_table_has_medians_in_the_units_of_its_head():
    def figure(name, unit, *values):
        return Figure("bridge", name, "x", unit, {"nbytes": 1 << 20}, Distribution.of(values))

    rows = table.text(
        [
            figure("throughput", "GB/s", 1.0, 2.0, 9.0),
            figure("CPU near", "µs/frame", 500.0),
            figure("CPU far", "µs/frame", 250.0),
            figure("one way, paced", "µs", 700.0),
            figure("one way, saturated", "µs", *([900.0] * 2000)),
        ]
    ).splitlines()
    assert rows[2:] == ["| 1 MiB | x | 2.00 | 0.50 + 0.25 | 0.70 / – | 0.90 / 0.90 |"]
