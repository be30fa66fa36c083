"""What the commands show of subscriptions: who made them durable, and who reads them."""

from __future__ import annotations

import os

import pytest

from tests.helpers.processes import poll
from tests.helpers.rings import put, segments_of, small_ring


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "lossless, from sequence 6 on; producers wait while nobody reads it"),
        (("--patience", 60), "…; producers wait for up to 1m00s while nobody reads it"),
        (("--start", "oldest"), "lossless, from sequence 4 on; …"),
        (("--lossy",), "lossy, from sequence 6 on; producers do not wait for it"),
    ],
)
def test_who_subscribes_is_told_what_was_made(name, command, options, told):
    with small_ring(name) as ring, ring.producer() as producer:
        put(producer, 2)
        (line,) = command("subscribe", name, "rec", *options).stdout.splitlines()
        begin, _, end = told.partition("…")
        assert line.startswith(f"subscribed rec to {name}, {begin}")
        assert line.endswith(end)


def test_who_subscribes_is_told_what_was_there(name, command):
    with small_ring(name) as ring, ring.producer() as producer:
        with ring.consumer("rec"):
            for done in ("is durable now", "was durable already"):
                told = command("subscribe", name, "rec", "--patience", 0.01).stdout
                assert told.startswith(f"subscription rec of {name} {done}; producers wait for up")
        put(producer, 6)  # the patience is over
        poll(lambda: ring.stats().subscriptions[0].given_up)
        told = command("subscribe", name, "rec").stdout
        assert "; its patience is over, and producers wait again when somebody reads it" in told


def test_who_unsubscribes_from_no_ring_is_told_so(name, command):
    done = command("unsubscribe", name, "rec")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"No ring or service named '{name}'" in done.stderr


def test_who_unsubscribes_is_told_what_becomes_of_it(name, command):
    def told():
        return command("unsubscribe", name, "rec").stdout

    with small_ring(name) as ring, ring.producer() as producer:
        ring.subscribe("rec")
        assert told() == f"subscription rec of {name} has ended\n"
        ring.subscribe("rec")
        put(producer, 3)
        left = "with 3 frames that nobody has read for it"
        assert told() == f"subscription rec of {name} has ended, {left}\n"
        with ring.consumer("rec"), ring.consumer("rec", durable=True):
            assert told() == f"subscription rec of {name} ends when its last reader has left\n"
        assert command("unsubscribe", name, "rec").returncode != 0


def test_a_name_cannot_write_into_the_terminal(name, command):
    with small_ring(name):
        for verb in ("subscribe", "unsubscribe"):
            told = command(verb, name, "red\x1b[31m").stdout
            assert "red\\x1b[31m" in told
            assert "\x1b" not in told


def test_a_subscription_of_a_closed_ring_ends_and_the_others_stay(name, command):
    with small_ring(name, subscriptions=["rec", "other"]):
        pass
    done = command("unsubscribe", name, "rec")
    assert done.stdout == f"subscription rec of {name}, which was closed, has ended\n"
    again = command("unsubscribe", name, "rec")
    assert again.returncode == 1
    assert f"ring '{name}', which was closed, has no subscription 'rec'" in again.stderr
    assert segments_of(name) == [f"gpuring.{name}"]
    why = f"{name} was closed, and keeps its name for the durable subscription other."
    assert why in " ".join(command("ls").stdout.split())
    shown = " ".join(command("inspect", name).stdout.split())
    assert "none; the next ring takes it over" in shown
    assert "No process is in it now." in shown
    with small_ring(name) as ring:
        assert [sub.name for sub in ring.stats().subscriptions] == ["other"]
    assert command("unsubscribe", name, "other").returncode == 0
    assert segments_of(name) == []


def members(shown):
    """The last column of inspect's table of subscriptions, whose lines may be several a row."""
    table = shown.partition("SUBSCRIPTION ")[2].partition("\n\n")[0].partition("\n(not shown")[0]
    lines = table.splitlines()
    at = lines[0].index("MEMBERS") + len("SUBSCRIPTION ")
    return " ".join(" ".join(line[at:] for line in lines[1:]).split())


@pytest.mark.parametrize("width", [80, 200])
def test_inspect_says_who_the_members_are(name, command, monkeypatch, width):
    """It does so in 80 columns, too.  If there are many, the rest is in the table of peers."""
    monkeypatch.setenv("COLUMNS", str(width))
    with small_ring(name) as ring:
        with ring.consumer("rec", label="recorder on disk 2", durable=True) as one:
            who = f"peer {one.peer} (recorder on disk 2, pid {os.getpid()})"
            shown = command("inspect", name).stdout
            assert members(shown) == who
            crowd = [ring.consumer("rec", label=f"worker {k}") for k in range(5)]
            shown = command("inspect", name).stdout
            told = [f"peer {w.peer} (worker {k}, pid {os.getpid()})" for k, w in enumerate(crowd)]
            assert members(shown) == f"{', '.join([who, *told[:3]])} and 2 more"
            assert max(map(len, shown.splitlines())) <= width
            for each in crowd:
                each.close()
        assert members(command("inspect", name).stdout).startswith("none for ")
