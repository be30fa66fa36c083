"""`python -m bench.bridge` measures what arrived, and notices what is wrong with it."""

from __future__ import annotations

import json

import pytest

from bench.bridge import __main__ as command
from bench.bridge import table
from bench.bridge.__main__ import main
from bench.bridge.carriers import CARRIERS
from bench.bridge.measure import carried
from bench.bridge.producers import producers
from bench.bridge.recovery import longest, silence
from gpuring.cli.measure import stored
from gpuring.cli.measure.attempt import Wrong
from gpuring.cli.measure.crew import Crew
from gpuring.cli.measure.figures import Distribution, Figure

BRIDGE = "bridge, zmq"


def carrier(name):
    return next(each for each in CARRIERS if each.name == name)


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
    assert (BRIDGE, "CPU beside its engine alone") in found
    assert (BRIDGE, "frames/s beside its engine alone") in found
    assert "cores" in json.loads(out.read_text())["machine"]
    assert table.text(run.figures).count("| 64 KiB |") == 3


@pytest.mark.parametrize("part", command.PARTS)
def test_a_part_is_measured_by_itself(monkeypatch, part):
    pytest.importorskip("zmq")
    measures = {"_size": {"sizes", "far"}, "_idle": {"idle"}}
    measures |= {each: {each} for each in ("producers", "recovery")}
    called = set()
    for name in measures:
        monkeypatch.setattr(command, name, lambda *_, name=name: called.add(name) or ())
    assert main(["--parts", part, "--only", BRIDGE]) == 0
    assert called == {name for name, parts in measures.items() if part in parts}


@pytest.mark.slow
def test_a_wrong_word_is_noticed():
    with Crew() as crew, carried(carrier("sockets"), crew, 4096, 4) as between:
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
            figure("CPU beside its engine alone", "×", 1.0, 1.1, 1.2),
            Figure("bridge", "claim to publish", "x", "µs", {"beside": "y"}, Distribution.of([3])),
        ]
    ).splitlines()
    assert rows[2:] == [
        "| 1 MiB | x | 2.00 | 0.50 + 0.25 | 0.70 / – | 0.90 / 0.90 |",
        "x, 1 MiB: CPU beside its engine alone × 1.10.",
        "x, beside y: claim to publish 3 µs.",
    ]


MS = 1_000_000


def test_the_silence_after_a_kill_is_that_between_frames_before_and_after_it():
    came = [0, 5 * MS, 10 * MS, 900 * MS, 905 * MS]
    assert longest(came, 7 * MS) == longest(came, 500 * MS) == 890 * MS
    assert longest(came, 901 * MS) == 5 * MS
    for since in (-1, 906 * MS):  # no frame came before it, or none after it
        with pytest.raises(Wrong, match="no frames came"):
            longest(came, since)


@pytest.mark.slow
def test_a_worker_is_back_before_it_is_killed_again():
    pytest.importorskip("zmq")
    with Crew() as crew:
        silent_ms = silence(carrier(BRIDGE), crew, "importer", kills=2, rest_s=0.2)
    assert len(silent_ms) == 2


@pytest.mark.slow
def test_what_a_producer_pays_is_measured_with_a_bridge_and_without():
    pytest.importorskip("zmq")
    with Crew() as crew:
        found = {(f.name, f.setting["beside"]): f for f in producers(carrier(BRIDGE), crew, 1, 0.1)}
    paced = "claim to publish", "a bridge"
    assert found[paced].verified == "the last frame has come, and 0 were lost"
    for (name, _), figure in found.items():
        if name == paced[0]:
            assert figure.values.n >= 10
        else:
            assert figure.values.p50 > 0
    assert len(found) == 7


@pytest.mark.slow
def test_over_a_long_link_everything_takes_so_much_longer():
    with Crew() as crew, carried(carrier("sockets"), crew, 4096, 4, delay_ms=20) as between:
        took, _ = between.send("timed", 0.2, 0.02)
    assert min(took) > 20 * MS
