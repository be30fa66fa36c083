"""`gpuring graph` draws rings and processes, with what is stuck in red.  top shows it, too."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import pytest

import gpuring
from gpuring.cli.top import rates
from gpuring.cli.top.dot import dot
from gpuring.cli.top.graph import graph
from gpuring.cli.top.rows import rows
from tests.cli.planted import PLANTED
from tests.cli.processes import reader
from tests.cli.screen import Screen
from tests.helpers.commands import DEADLINE_S, running
from tests.helpers.processes import poll, up
from tests.helpers.rings import put, small_ring

needs_graphviz = pytest.mark.skipif(not shutil.which("dot"), reason="graphviz is not installed")


@pytest.fixture
def soon(monkeypatch):
    """Makes everything count as stuck that does not move for a moment."""
    monkeypatch.setattr(rates, "STUCK_S", 0.1)


@pytest.fixture
def stuck(name, children, soon):
    """camera → name → detector → name-seen → page, which is stopped; a viewer keeps pace."""
    with PLANTED["a_full_ring_further_on"](children, name) as blame:
        names = [name, f"{name}-seen"]

        def whole():
            now = rates.look(names)
            found = [jam for jam in now.jams if {*names} & {*jam.rings}]
            pids = [peer.pid for jam in found for end in jam.culprits for peer in end.peers]
            if pids != [blame.pid] or len(found[0].steps) != 2:
                return None
            # Between two slices of its sleep nobody is counted as a sleeper for a moment.
            return now if all(step.waiting for step in found[0].steps) else None

        now = poll(whole)
        yield graph(None, now), blame


def test_the_chain_from_who_waits_to_the_culprit_is_marked(stuck, name):
    whole, blame = stuck
    assert {(e.ring, e.peer.label, e.writes) for e in whole.edges if e.stuck} == {
        (name, "camera", True),
        (name, "detector", False),
        (f"{name}-seen", "detector", True),
        (f"{name}-seen", "page", False),
    }
    assert {e.peer.label for e in whole.edges} == {"camera", "detector", "page", "viewer"}
    assert [pid for _, pid in whole.culprits] == [blame.pid]


def test_a_ring_that_is_filled_from_another_one_comes_below_it(stuck, name):
    whole, _ = stuck
    assert list(whole.rings) == [name, f"{name}-seen"]
    assert whole.layers == {name: 0, f"{name}-seen": 1}


@pytest.mark.parametrize("width", [60, 80])
def test_lines_fit_and_mark_the_culprit_without_colours(stuck, width):
    whole, blame = stuck
    lines = rows(whole, width)
    assert max(len(line.text) for line in lines) <= width
    text = "\n".join(line.text for line in lines)
    assert {str(e.peer.pid) for e in whole.edges} <= {*re.findall(r"\d+", text)}
    (culprit,) = [line for line in lines if line.text.startswith("!!  ")]
    assert str(blame.pid) in culprit.text
    viewer = next(line for line in lines if "▶ viewer" in line.text)
    assert (viewer.style, viewer.text[:2]) == ("", "  ")
    assert culprit.style == "red"


@needs_graphviz
def test_the_picture_has_every_ring_and_process(stuck, name, command, tmp_path):
    whole, blame = stuck
    file = tmp_path / "graph.svg"
    done = command("graph", name, f"{name}-seen", "--interval", 0.01, "--svg", file)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    picture = ElementTree.parse(file).getroot()
    words = {each.text for each in picture.iter() if each.text}
    assert {name, f"{name}-seen", *(f"pid {e.peer.pid}" for e in whole.edges)} <= words
    nodes = [each for each in picture.iter() if each.get("class") == "node"]
    filled = [each for each in nodes if any(e.get("fill") == "#c62828" for e in each)]
    assert [f"pid {blame.pid}" in [e.text for e in each] for each in filled] == [True]


def test_without_graphviz_it_says_so(name, command, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = command("graph", "--interval", 0.01, "--svg", tmp_path / "x.svg")
    assert done.returncode == 1
    assert "graphviz is not installed" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_names_of_others_cannot_write_into_the_picture(name):
    with small_ring(name) as ring, ring.producer(label='"];x [label="\\\n') as producer:
        text = dot(graph(None, rates.look([name])))
        (node,) = [line for line in text.splitlines() if "ellipse" in line]
        assert f"pid {producer.ring.stats().peers[0].pid}" in node
        assert len(re.findall(r'(?<!\\)"', node)) == 4
        assert "x [label" not in re.sub(r'"(\\.|[^"\\])*"', "", node)


def test_a_circle_of_rings_has_an_end(name, children):
    with PLANTED["a_circle"](children, name):
        whole = graph(None, rates.look([name, f"{name}-b"]))
        assert sorted(whole.layers.values()) == [0, 1]
        assert len(whole.rings) == 2


def test_rates_and_subscriptions_that_nobody_reads_are_shown(name):
    with small_ring(name) as ring, ring.producer() as producer:
        ring.subscribe("recorder")
        viewer = ring.consumer("viewer", lossless=False)
        before = rates.look([name])
        put(producer, 2)
        viewer.acquire(0).release()
        now = replace(rates.look([name]), at_s=before.at_s + 1)
        whole = graph(before, now)
        assert whole.figures[name] == "4 slots, 2.0/s"
        assert {e.subscription: e.figures for e in whole.edges} == {
            "": "2.0/s",
            "viewer": "1/4, 1.0/s",
        }
        assert whole.nobody[name] == ("recorder",)
        assert any("▶ recorder: nobody" in line.text for line in rows(whole))


def test_a_ring_that_is_not_there_is_said_so(name, command):
    done = command("graph", "--interval", 0.01, name)
    assert done.returncode == 1
    assert done.stderr.startswith(f"gpuring graph: No ring or service named {name!r}")
    assert done.stdout == ""


def test_rings_that_cannot_be_read_are_named(name):
    with small_ring(name):
        seen = replace(rates.look([name]), rings={}, jams=(), unreadable={name: "damaged"})
    lines = [line.text for line in rows(graph(None, seen))]
    assert f"{name} cannot be read: damaged" in lines
    assert "No rings" not in lines


@pytest.mark.parametrize("command", [("top",), ("graph", "--watch")])
def test_a_key_changes_between_the_tables_and_the_graph(name, children, command):
    screen = Screen()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "20"}
    terminal = dict.fromkeys(("stdin", "stdout", "stderr"), screen.theirs)
    views = ["SUBSCRIPTION", "└▶ viewer"]
    first, second = views if command == ("top",) else reversed(views)
    try:
        with gpuring.create(name, slots=2, shape=8, dtype="u1", device="host"):
            up(children(reader, name, "viewer"))
            options = ("--interval", 60, name)
            with running(*command, *options, env=environment, **terminal) as shown:
                screen.until(lambda text: first in text)
                assert second not in screen.text
                for view in (second, first):
                    screen.forget()
                    os.write(screen.fd, b"g")
                    screen.until(lambda text, view=view: view in text)
                os.write(screen.fd, b"q")
                assert shown.wait(DEADLINE_S) == 0
    finally:
        screen.close()
