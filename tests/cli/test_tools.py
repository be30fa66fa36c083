"""`gpuring top` with rings of other processes.  Tables fit, and a missing package is named."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from dataclasses import replace

import pytest

from tests.helpers.commands import DEADLINE_S, running
from tests.helpers.processes import poll, up

pytest.importorskip("rich", reason="gpuring[tools] is not installed")

import gpuring
from gpuring.cli import text
from gpuring.cli.inspect import describe
from gpuring.cli.top import rates
from gpuring.cli.top.dot import dot
from gpuring.cli.top.graph import graph
from gpuring.cli.top.rows import rows
from gpuring.cli.top.view import Widths, render
from tests.cli.processes import creator_with_two_readers, reader, selects
from tests.helpers.rings import damage, small_ring

HOST = {"device": "host", "shape": 8, "dtype": "u1"}


def hold_forever(pipe, name):
    with gpuring.attach(name) as ring, ring.consumer("victim") as frames:
        with ring.producer() as producer:
            producer.claim().publish()
        frames.acquire(10)
        pipe.ask()


def cells(line):
    return re.split(r"\s{2,}", line.strip())


def ring_row(text, name):
    """The ring's row of the table of rings, by heading."""
    lines = text.splitlines()
    (head,) = [line for line in lines if line.startswith("RING ")]
    row = next(line for line in lines if line.startswith(f"{name} "))
    return dict(zip(cells(head), cells(row), strict=True))


def peers(text, name):
    """The ring's rows of the table of peers, by subscription ("–": the producer)."""
    lines = text.splitlines()
    (at,) = [n for n, line in enumerate(lines) if "SUBSCRIPTION" in line]
    head = cells(lines[at])
    start = next(n for n, line in enumerate(lines[at:], at) if line.startswith(f"{name}: ")) + 1
    found = {}
    for line in lines[start:]:
        if line.startswith("  ") and len(cells(line)) == 1:  # the ring's second line
            continue
        if len(cells(line)) != len(head):
            break
        row = dict(zip(head, cells(line), strict=True))
        found[row["SUBSCRIPTION"]] = row
    return found


# ---- top ---------------------------------------------------------------------------------------


def test_once_shows_lag_lost_and_holds(name, children, command):
    child = children(creator_with_two_readers, name)
    _, ring = child.receive()
    (lag,) = (sub.lag for sub in ring.subscriptions if sub.name == "slow")
    assert lag > 0
    done = command("top", "--once", "--interval", 0.05, name)
    child.finish()
    assert (done.returncode, done.stderr) == (0, "")
    shown = ring_row(done.stdout, name)
    assert [shown[key] for key in ("CLAIMED", "1/S", "PEERS", "STATE")] == ["6", "0.0", "3", "open"]
    seen = peers(done.stdout, name)
    assert (seen["viewer"]["LOST"], seen["viewer"]["KIND"]) == ("2", "lossy")
    assert re.fullmatch(r"6 for \S+ \S+", seen["viewer"]["HOLDS"]), seen["viewer"]
    assert (seen["slow"]["LAG"], seen["slow"]["KIND"]) == (f"{lag}/4", "lossless")
    assert seen["slow"]["HOLDS"] == "nothing"
    assert (seen["–"]["FRAMES"], seen["–"]["PID"]) == ("6", str(child.pid))
    assert seen["–"]["KIND"] == "producer"


def test_top_says_who_is_in_a_ring_where_nobody_waits(name, command):
    def line_of_the_ring():
        text = command("top", "--once", "--interval", 0.01, name).stdout
        return [line for line in text.splitlines() if line.startswith(f"{name}:")]

    with gpuring.create(name, slots=4, **HOST) as ring:
        with ring.consumer(), ring.consumer():
            assert line_of_the_ring() == [f"{name}: no producer and 2 consumers"]
        with ring.producer():
            assert line_of_the_ring() == [f"{name}: 1 producer and no consumer"]


def test_a_terminal_of_80_columns_shows_who_loses_frames_and_what_was_dropped(
    name, command, monkeypatch
):
    """The rates, the lag and the labels are shown, too, even if counters are as large as after a
    long run."""
    monkeypatch.setenv("COLUMNS", "80")
    with (
        gpuring.create(name, slots=4, **HOST) as ring,
        ring.producer(label="camera.py") as producer,
        ring.consumer("viewer", lossless=False, label="viewer.py") as viewer,
    ):
        for _ in range(30_006):
            producer.claim(0).publish()
        viewer.acquire(0).release()
        ring.subscribe("recorder")  # nobody reads it, so the ring is full
        for _ in range(4 + 9):
            if slot := producer.try_claim():
                slot.publish()
        text = command("top", "--once", "--interval", 0.01, name).stdout
        assert ring_row(text, name)["DROPPED"] == "9"
        assert {"LABEL", "1/S", "LAG"} < peers(text, name)["viewer"].keys()
        assert peers(text, name)["viewer"]["LABEL"] == "viewer.py"
        assert peers(text, name)["viewer"]["LOST"] == "30002"
        drawn = command("graph", "--interval", 0.01, name).stdout
        assert ", 9 dropped" in drawn
        assert ", 30002 lost: viewer.py" in drawn


def test_a_dead_peer_is_shown_before_and_after_it_is_cleared(name, children, command):
    with gpuring.create(name, slots=4, **HOST) as ring:
        victim = up(children(hold_forever, name))
        victim.kill()  # no living process could clear it
        shown = peers(command("top", "--once", "--interval", 0.05, name).stdout, name)
        assert shown["victim"]["STATE"] == "DEAD", shown
        ring.watch()
        poll(lambda: ring.stats().reaps)
        text = command("top", "--once", "--interval", 0.05, name).stdout
        assert re.search(rf"{name}: .* ago: consumer \d+ \(\S+, pid {victim.pid}\) died", text), (
            text
        )


def test_a_ring_that_is_not_there_is_said_so(name, command):
    missing = command("top", "--once", "--interval", 0.01, name)
    assert (missing.returncode, missing.stdout) == (1, "")
    told = "gpuring top: No ring or service named"
    assert missing.stderr.startswith(f"{told} {name!r}: this host has ")
    with gpuring.create(name, slots=2, **HOST):
        both = command("top", "--once", "--interval", 0.01, name, f"{name}-x")
        assert both.returncode == 1
        (line,) = both.stderr.splitlines()
        listed = re.match(rf"{told} '{name}-x': this host has (.*?)\. ", line)[1]
        assert name in listed.split(", ") or " more" in listed
        assert ring_row(both.stdout, name)["STATE"] == "open"
    path = damage(name)
    try:
        done = command("top", "--once", "--interval", 0.01, name)
        assert done.returncode == 0
        assert ring_row(done.stdout, name)["STATE"] == "unreadable"
        assert f"{name} cannot be read: " in done.stdout
    finally:
        path.unlink()


def test_into_a_pipe_it_prints_a_table_an_interval_and_ctrl_c_ends_it(name):
    waits = f"No ring named {name!r} on this host; waiting for it\n"
    with running("top", "--interval", 0.02, name) as top:
        assert top.stdout.readline() == waits
        with gpuring.create(name, slots=2, **HOST):
            while not top.stdout.readline().startswith(f"{name} "):
                pass
        while top.stdout.readline() != waits:
            pass
        top.send_signal(signal.SIGINT)
        _, errors = top.communicate(timeout=DEADLINE_S)
        assert (top.returncode, errors) == (0, "")


def crowd(pipe, name, subscription):
    """A ring with a producer and three readers, one of them with a long name."""
    with gpuring.create(name, slots=4, **HOST) as ring, ring.producer() as producer:
        for _ in range(6):
            producer.claim(0).publish()
        with (
            ring.consumer(subscription, start="oldest") as first,
            ring.consumer(subscription) as second,
            ring.consumer("viewer", lossless=False, start="oldest") as viewer,
        ):
            held = [first.acquire(10), second.acquire(10), viewer.acquire(10), viewer.acquire(10)]
            pipe.ask()
            for slot in held:
                slot.release()


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("tool", ["top", "inspect", "ls"])
def test_tables_fit_and_cut_nothing_off(name, children, tool, width, command, monkeypatch):
    long = "object-detection-and-tracking"
    child = up(children(crowd, name, long))
    options = (*(("--once", "--interval", 0.05) if tool == "top" else ()), name)
    everything = command(tool, *options).stdout
    monkeypatch.setenv("COLUMNS", str(width))
    text = command(tool, *options).stdout
    child.finish()
    assert "…" not in text
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines), text
    assert "not shown, for lack of" in text or width == 120
    assert "not shown" not in everything
    if tool == "ls":
        return
    assert text.count(str(child.pid)) >= 3, text
    if tool == "inspect":
        assert text.count(" producer ") == 1, text  # ROLE, for a bridge's two peers
    whole = re.sub(r"\s", "", text)  # a name may go on in the next line
    assert whole.count("object-") == whole.count("tracking") >= 1, text


@pytest.mark.parametrize("row", [("cam0",), ("cam0", "1", "2")])
def test_a_row_has_a_cell_for_each_heading(row):
    with pytest.raises(ValueError, match="zip"):
        text.table(("NAME", "PID"), [("cam1", "7"), row])


def test_who_looks_narrowly_is_told_which_columns_are_left_out(name):
    headings, rows = ("NAME", "PID", "LONG", "MORE"), [("a" * 12, "123456", "b c d", "e")]
    everything = text.table(headings, rows, right=("PID",), drop=("MORE", "LONG"))
    assert str(everything).splitlines() == [
        "NAME             PID  LONG   MORE",
        "aaaaaaaaaaaa  123456  b c d  e",
    ]
    some = text.table(headings, rows, right=("PID",), drop=("MORE", "LONG"), width=27)
    assert str(some).splitlines() == [
        "NAME             PID  LONG",
        "aaaaaaaaaaaa  123456  b c d",
        "(not shown, for lack of",
        "  room: MORE)",
    ]
    wrapped = text.table(headings, rows, right=("PID",), drop=("MORE", "LONG"), width=16)
    assert wrapped.rows == ["aaaaaaaa  123456\naaaa"]
    assert wrapped.left_out == ["MORE", "LONG"]


def test_a_wide_letter_takes_two_columns():
    headings, rows = ("LABEL", "PID"), [("前方", "7"), ("rear", "8"), ("右カメラ", "9")]
    table = text.table(headings, rows, right=("PID",))
    assert str(table).splitlines() == [
        "LABEL     PID",
        "前方        7",
        "rear        8",
        "右カメラ    9",
    ]
    assert text.table(headings, rows, right=("PID",), drop=("PID",), width=12).left_out == ["PID"]
    assert text.wrap("右 カメラ 前方", 16).splitlines() == ["右 カメラ 前方"]
    assert text.wrap("右 カメラ 前方 後", 16).splitlines() == ["右 カメラ 前方", "後"]
    assert text.wrap("右" * 20, 17).splitlines() == ["右" * 8, "右" * 8, "右" * 4]
    assert text.wrap("右" * 9, 18, "  ").splitlines() == ["右" * 9]
    assert text.wrap("右" * 9, 17, "  ").splitlines() == ["右" * 8, "  右"]
    narrow = text.table(headings, [("右" * 5 + "前" * 3, "7")], right=("PID",), width=14)
    assert str(narrow).splitlines() == ["LABEL      PID", "右右右右     7", "右前前前"]


def test_a_command_in_a_text_stays_in_one_line_if_it_fits():
    said = "End it with `gpuring clean cam0`."
    assert text.wrap(said, 24, "  ").splitlines() == ["End it with", "  `gpuring clean cam0`."]
    assert text.wrap(said, 21, "  ").splitlines() == ["End it with `gpuring", "  clean cam0`."]
    assert text.wrap(said, None) == said


def test_a_table_stands_still_while_its_values_change(name):
    def heads(producer, frames):
        before = rates.look([name])
        for _ in range(frames):
            producer.claim(0).publish()
        now = replace(rates.look([name]), at_s=before.at_s + 0.001)
        lines = render(before, now, width=120, widths=widths)
        return [line.text for line in lines if "1/S" in line.text]

    widths = Widths()
    with gpuring.create(name, slots=4, **HOST) as ring, ring.producer() as producer:
        narrow = heads(producer, 0)
        wide = heads(producer, 2000)
        assert wide != narrow
        assert heads(producer, 0) == wide


def test_who_is_stopped_is_told_once_with_all_its_rings(name, children, command):
    other = f"{name}-b"
    with small_ring(name), small_ring(other):
        both, page, viewer = (
            up(children(selects, name, other)),
            *(up(children(reader, name, each)) for each in ("page", "viewer")),
        )
        for each in (both, page, viewer):
            each.stop()
        told = " ".join(command("ls", name, other).stdout.split())
        assert f"Stopped in {name}, {other}: both (pid {both.pid}). " in told
        said = re.search(rf"Stopped in {name}: (.*)\.", told)[1].split(", ")
        assert sorted(said) == [f"page (pid {page.pid})", f"viewer (pid {viewer.pid})"]


def test_what_cannot_be_read_for_one_reason_is_told_once(name, command):
    paths = [damage(f"{name}.{k}") for k in range(3)]
    try:
        text = command("ls").stdout
    finally:
        for path in paths:
            path.unlink()
    (line,) = [line for line in text.splitlines() if "this is no ring" in line and name in line]
    assert all(f"{name}.{k}" in line for k in range(3)), line


def test_a_pid_that_means_nothing_here_has_a_star(name):
    with small_ring(name) as ring, ring.producer(), ring.consumer("rec"):
        one = ring.stats()
    peers = tuple(replace(each, pid=7, pid_here=None) for each in one.peers)
    apart = replace(one, peers=peers)
    look = rates.Look(0.0, {name: apart}, {}, {name: "me"})
    for shown in (describe(apart), "\n".join(line.text for line in render(None, look))):
        assert shown.splitlines()[-1] == "* of another pid namespace"
        assert re.findall(r"(?<!\S)7(?!\S)|pid 7\b(?!\*)", shown) == []
        assert shown.count(" 7* ") == 2
    assert "pid 7*)" in describe(apart)
    drawn = "\n".join(line.text for line in rows(graph(look, look)))
    assert (drawn.count(" 7*"), drawn.splitlines()[-1]) == (2, "* of another pid namespace")
    assert "pid 7 of another pid namespace" in dot(graph(look, look))


def test_idle_rings_give_way_where_a_screen_has_no_room(name):
    """Rings that nobody has joined give way to those with peers."""
    with contextlib.ExitStack() as stack:
        idle = [f"{name}.{n}" for n in range(5)]
        for each in idle:
            stack.enter_context(gpuring.create(each, slots=2, **HOST))
        ring = stack.enter_context(gpuring.create(f"{name}.x", slots=2, **HOST))
        stack.enter_context(ring.producer())
        now = rates.look([*idle, ring.name])

        def shown(height):
            return [line.text for line in render(None, now, width=80, height=height)]

        whole = shown(None)
        assert shown(len(whole)) == whole
        assert whole[1].startswith(idle[0])
        less = shown(len(whole) - 1)
        assert less[1].startswith(ring.name)
        assert less[2:5] == ["(5 rings that nobody has joined)", whole[7], ""]
        assert less[5:] == whole[9:]
        assert shown(len(less) - 1) == less


def test_rates_are_of_the_same_ring_and_peer(name):
    with gpuring.create(name, slots=4, **HOST) as ring:
        producer = ring.producer()
        before = rates.look([name])
        for _ in range(6):
            producer.claim(0).publish()
            producer.claim(0).abandon()  # a sequence, and no frame
        after = rates.look([name])
        (peer,) = after.rings[name].peers
        later = replace(after, at_s=before.at_s + 2)
        assert rates.frames_per_s(before, later, name) == 3
        assert rates.peer_per_s(before, later, name, peer) == (3, 0)
        assert rates.frames_per_s(None, later, name) is None
        assert rates.peer_per_s(replace(before, rings={}), later, name, peer) is None
        producer.close()
        again = ring.producer()  # it has the same number, process and role
        for _ in range(9):
            again.claim(0).publish()
        third = rates.look([name])
        (newcomer,) = third.rings[name].peers
        assert newcomer.number == peer.number
        assert rates.peer_per_s(after, third, name, newcomer) is None
        assert rates.frames_per_s(after, replace(third, at_s=after.at_s + 3), name) == 3
    with gpuring.create(name, slots=4, **HOST):
        assert rates.frames_per_s(after, rates.look([name]), name) is None


# ---- extras ------------------------------------------------------------------------------------


def test_ls_lists_only_the_rings_that_are_named(name, command):
    with (
        gpuring.create(f"{name}.a", slots=2, **HOST) as one,
        gpuring.create(f"{name}.b", slots=2, **HOST) as other,
    ):
        done = command("ls", one.name)
        assert (done.returncode, one.name in done.stdout, other.name in done.stdout) == (
            0,
            True,
            False,
        )
        known = json.loads(command("ls", other.name, one.name, "--json").stdout)
        assert {each["name"] for each in known} == {one.name, other.name}
        done = command("ls", one.name, f"{name}.c")
        assert (done.returncode, one.name in done.stdout) == (1, True)
        assert f"gpuring ls: No ring or service named '{name}.c'" in done.stderr
