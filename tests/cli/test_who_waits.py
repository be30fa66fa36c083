"""`gpuring inspect` and `gpuring top` say who waits for whom, also on a small screen."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace

import pytest

import gpuring
from gpuring.cli.top import rates
from gpuring.cli.top.keys import named
from gpuring.cli.top.lines import Line, window
from gpuring.cli.top.view import render
from gpuring.cli.why import brief
from tests.cli.planted import PLANTED
from tests.helpers.processes import poll, up
from tests.helpers.rings import drain, put, small_ring

SLOTS = 4


def claims(pipe, name):
    with gpuring.attach(name) as ring, ring.producer() as producer:
        pipe.send(producer.peer)
        with producer.claim(60):
            pass


def reads(pipe, name, subscription):
    with gpuring.attach(name) as ring, ring.consumer(subscription) as frames:
        pipe.ask(frames.peer)
        drain(frames)


def told_now(ring, text):
    """What the ring says of who is in the way, but with the time that the text gives."""
    return re.sub(r"\d+\.\d+ s", re.search(r"\d+\.\d+ s", text)[0], ring.stats().in_the_way.why)


def last_sentence(shown):
    """The text below the tables, as one line."""
    return " ".join(re.split(r"\n(?=\S)", shown.strip())[-1].split())


def test_inspect_ends_with_whom_producers_wait_for(name, children, command):
    with small_ring(name, SLOTS) as ring, ring.producer() as producer:
        reader = ring.consumer("recorder")
        assert "wait:" not in command("inspect", name).stdout
        put(producer, SLOTS)
        last = last_sentence(command("inspect", name).stdout)
        assert last == f"the ring is full: {told_now(ring, last)}"
        child = up(children(claims, name))
        poll(lambda: ring.stats().held_up)
        last = last_sentence(command("inspect", name).stdout)
        assert last == f"producers wait: {told_now(ring, last)}"
        known = json.loads(command("inspect", name, "--json").stdout)["in_the_way"]
        assert (known["subscription"], known["peers"]) == ("recorder", [reader.peer])
        drain(reader)
        child.result()


def test_inspect_and_top_go_on_with_whom_the_one_in_the_way_waits_for(name, children, command):
    with PLANTED["a_full_ring_further_on"](children, name) as blame:
        told = f" waits for a free slot of ring {name}-seen: subscription 'page' has not"

        def inspected():
            last = last_sentence(command("inspect", name).stdout)
            return last if told in last else None

        last = poll(inspected)
        assert last.startswith(f"producers wait because of page (pid {blame.pid}): peer ")
        assert f"(page, pid {blame.pid}, stopped)" in last
        shown = " ".join(line.text for line in render(None, rates.look([name]), [name], width=80))
        assert f"waits for a free slot of ring {name}-seen" in " ".join(shown.split())


def test_who_holds_up_a_bridge_is_not_looked_for_over_there_if_that_is_here(
    name, children, command
):
    pytest.importorskip("zmq")
    with PLANTED["a_bridge_whose_other_side_does_not_read"](children, name) as blame:

        def inspected():
            last = last_sentence(command("inspect", name).stdout)
            return last if f"because of page (pid {blame.pid}): " in last else None

        assert "On that host" not in poll(inspected)


def pids(lines):
    """The pids of the table of peers, from the top."""
    at = next(n for n, line in enumerate(lines) if "SUBSCRIPTION" in line.text)
    rows = (re.match(r"\s*(?:\d+\s+)?(?:producer|lossless|lossy)\s+(\d+)", line.text)
            for line in lines[at:])  # fmt: skip
    return [int(row[1]) for row in rows if row]


def test_top_shows_first_who_is_waited_for_then_who_waits(name, children):
    """Rings whose producers wait come first, whatever their names are."""
    with small_ring(f"{name}.a", SLOTS) as idle, small_ring(f"{name}.b", SLOTS) as ring:
        names = [idle.name, ring.name]
        for _ in range(2):
            idle.consumer("others")
        with ring.producer() as producer:
            fast = [ring.consumer("fast") for _ in range(3)]
            slow = up(children(reads, ring.name, "slow"))
            put(producer, SLOTS)
            drain(fast[0])
            before = render(None, rates.look(names), names, width=80)
            assert [line.text for line in before][1].startswith(idle.name)
            waiter = up(children(claims, ring.name))
            poll(lambda: ring.stats().held_up)
            slow.stop()
            lines = render(None, rates.look(names), names, width=80)
            assert lines[1].text.startswith(ring.name)
            assert pids(lines)[:2] == [slow.pid, waiter.pid]
            assert len(pids(lines)) == len(pids(before)) + 1
            whole = " ".join(line.text.strip() for line in lines)
            assert f"{ring.name}: producers wait: subscription 'slow' has not taken" in whole
            assert f", pid {slow.pid}, stopped)" in whole
            os.kill(slow.pid, signal.SIGCONT)
            slow.finish()
            waiter.result()


def test_top_shows_rings_with_a_stopped_process_before_quiet_ones(name, children):
    """Nobody waits for it, and its ring might be the last of a hundred."""
    with small_ring(f"{name}.a") as quiet, small_ring(f"{name}.b") as ring:
        names = [quiet.name, ring.name]
        stopped = up(children(reads, ring.name, "slow"))
        assert render(None, rates.look(names), names)[1].text.startswith(quiet.name)
        stopped.stop()
        poll(lambda: any(peer.stopped for peer in ring.stats().peers))
        assert render(None, rates.look(names), names)[1].text.startswith(ring.name)
        os.kill(stopped.pid, signal.SIGCONT)


def test_top_names_who_keeps_the_slot_for_want_of_which_frames_are_dropped(name, children):
    """The frames are dropped by try_claim, with which no producer waits."""
    with small_ring(f"{name}.a", SLOTS) as idle, small_ring(f"{name}.b", SLOTS) as ring:
        names = [idle.name, ring.name]
        idle.consumer("others")
        with ring.producer() as producer:
            slow = up(children(reads, ring.name, "slow"))
            put(producer, SLOTS)
            before = rates.look(names)
            lines = render(before, rates.look(names), names, width=80)
            assert lines[1].text.startswith(idle.name)
            assert producer.try_claim() is None
            lines = render(before, rates.look(names), names, width=80)
            assert lines[1].text.startswith(ring.name)
            assert pids(lines)[0] == slow.pid
            whole = " ".join(line.text.strip() for line in lines)
            assert f"{ring.name}: frames are dropped: subscription 'slow' has not taken" in whole
            begin = f"No slot is free in {ring.name} ← subscription slow ← "
            assert brief(rates.look(names).chains[ring.name]).startswith(begin)
            slow.finish()


def test_a_stopped_peer_comes_first_though_nobody_waits_for_it(name, children):
    with small_ring(name, SLOTS) as ring, ring.producer():
        child = up(children(reads, name, "slow"))
        assert pids(render(None, rates.look([name]), [name], width=80))[0] == os.getpid()
        child.stop()
        assert pids(render(None, rates.look([name]), [name], width=80))[0] == child.pid


def test_top_tells_above_the_peers_who_has_just_died(name, children):
    with small_ring(name, SLOTS) as ring, ring.producer():
        child = up(children(reads, name, "slow"))
        child.kill()
        (dead,) = poll(lambda: ring.stats().deaths)

        def lines(age_s):
            now = rates.look([name])
            now.rings[name] = replace(now.rings[name], deaths=(replace(dead, age_s=age_s),))
            return [line.text for line in render(None, now, [name], width=80)]

        just, earlier = lines(1.0), lines(100.0)
        told = f"ago: consumer {dead.number} ("
        assert at(just, told) < at(just, "SUBSCRIPTION")
        assert at(earlier, "SUBSCRIPTION") < at(earlier, told)


def at(lines, text):
    return next(n for n, line in enumerate(lines) if text in line)


LINES = [Line(f"line {n}") for n in range(1, 51)]


@pytest.mark.parametrize(
    ("first", "shown", "note"),
    [
        (0, (1, 23), "lines 1–23 of 50"),
        (5, (6, 28), "lines 6–28 of 50"),
        (-3, (1, 23), "lines 1–23 of 50"),
        (1000, (28, 50), "lines 28–50 of 50"),
    ],
)
def test_a_screen_is_a_window_of_the_lines(first, shown, note):
    lines, at = window(LINES, first, 24)
    assert len(lines) == 24
    assert (lines[0], lines[-2]) == (LINES[shown[0] - 1], LINES[shown[1] - 1])
    assert note in lines[-1].text
    assert len(lines[-1].text) < 80
    assert at == shown[0] - 1


def test_a_screen_that_has_room_shows_all():
    assert window(LINES[:24], 7, 24) == (LINES[:24], 0)
    assert len(window(LINES, 0, 1)[0]) == 1


@pytest.mark.parametrize(
    ("pressed", "names"),
    [
        (b"j", ["down"]),
        (b"\x1b[B", ["down"]),
        (b"\x1bOB", ["down"]),
        (b"kk", ["up", "up"]),
        (b"\x1b[A\x1b[5~", ["up", "page up"]),
        (b"\x1b[6~q", ["page down", "quit"]),
        (b"\x1b[HG", ["home", "end"]),
        (b"x\x1b[2~\x1bg", ["graph"]),
    ],
)
def test_keys_have_names_whatever_a_terminal_sends_for_them(pressed, names):
    assert named(pressed) == names
