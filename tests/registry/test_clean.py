"""Names that are removed: ls, unlink, clean, and two processes that change one name at once."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path

import pytest

import gpuring
from gpuring import native
from gpuring.registry import segment as segments
from tests.helpers.commands import gpuring as command
from tests.helpers.processes import Pipe, up
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of

OPTIONS = {"slots": 2, "shape": 4, "dtype": "u1", "device": "host"}


def cleaned(name: str) -> list[str]:
    """What clean() has removed of this test's names.  Other programs of this host may have rings,
    too."""
    return sorted(removed for removed in gpuring.clean() if name in removed)


def owner(pipe: Pipe, name: str) -> None:
    """Creates a ring, says so, and keeps it until it is killed or told to end."""
    with gpuring.create(name, **OPTIONS) as ring, ring.producer():
        pipe.ask(os.getpid())


def guest(pipe: Pipe, name: str) -> None:
    with gpuring.attach(name) as ring, ring.consumer():
        pipe.ask()


def test_ls_and_unlink(name):
    with gpuring.create(name, **OPTIONS) as ring, ring.consumer("x"):
        (mine,) = [stats for stats in gpuring.ls() if stats.name == name]
        assert mine == ring.stats() or mine.epoch == ring.stats().epoch
        assert [s.name for s in mine.subscriptions] == ["x"]
        inside = gpuring.attach(name)
        gpuring.unlink(name)
        assert segments_of(name) == []
        assert name not in [stats.name for stats in gpuring.ls()]
        with pytest.raises(gpuring.RingNotFound):
            gpuring.attach(name)
        with ring.producer() as producer, inside.consumer() as frames:  # its members go on
            producer.claim().publish()
            assert frames.acquire().seq == 2
        inside.close()


def test_ls_and_clean_pass_over_foreign_files(name):
    with gpuring.create(name, **OPTIONS):
        stranger = Path(f"/dev/shm/gpuring.{name}-junk")
        stranger.write_bytes(b"x" * 10000)
        assert name in [stats.name for stats in gpuring.ls()]
        assert cleaned(name) == [f"{name}-junk"]
        assert not stranger.exists()


@promise(
    "failure.md",
    "It removes rings whose processes are all dead, slots that have no ring, and sockets of the "
    "dead.",
)
def test_clean_removes_what_the_dead_left_and_keeps_the_living(name, children):
    with gpuring.create(f"{name}-mine", **OPTIONS):
        child = children(owner, f"{name}-dead")
        assert child.receive() == child.pid
        assert cleaned(name) == []
        child.kill()
        (stats,) = [stats for stats in gpuring.ls() if stats.name == f"{name}-dead"]
        assert not stats.creator_alive
        assert [peer.alive for peer in stats.peers] == [False]
        assert cleaned(name) == [f"{name}-dead"]
        assert segments_of(f"{name}-dead") == []
        gpuring.attach(f"{name}-mine").close()


# ---- the command -------------------------------------------------------------------------------


def said(name: str, *options: str) -> tuple[int, list[str], str]:
    """The status of `gpuring clean`, and its lines about this test's names."""
    done = command("clean", *options)
    assert "Traceback" not in done.stderr
    return done.returncode, [line for line in done.stdout.splitlines() if name in line], done.stderr


@promise("failure.md", "It leaves a ring alone if any process in it is alive.")
def test_a_dry_run_says_what_clean_then_does(name, children):
    """For every kind of thing it says what goes, what stays, and why."""
    dead, guests = children(owner, f"{name}-dead"), children(owner, f"{name}-guests")
    for each in (dead, guests):
        each.receive()
    inside = up(children(guest, f"{name}-guests"))
    dead.kill()
    guests.kill()
    half = Path(f"/dev/shm/gpuring.{name}-half")
    orphan = Path(f"/dev/shm/gpuring.{name}-orphan+{'0' * 32}")
    link = Path(f"/dev/shm/gpuring.{name}-link")
    half.write_bytes(b"")
    orphan.write_bytes(b"x")
    link.symlink_to("/dev/null")
    before = segments_of(name)
    with gpuring.create(f"{name}-mine", **OPTIONS) as ring, ring.consumer():
        all_of_it = [f"{name}-{k}" for k in ("dead", "guests", "half", "link", "mine", "orphan")]
        status, lines, _ = said(name, "--dry-run", *all_of_it)
        told = dict(line.split(" would ", 1) for line in lines)
        removed = {each for each, fate in told.items() if fate.startswith("be removed: ")}
        assert status == 1  # the real run, below, has the same status
        assert set(segments_of(name)) > set(before)
        assert removed == {f"{name}-dead", f"{name}-half", orphan.name}
        reasons = {
            f"{name}-dead": f"its creator (pid {dead.pid}) is dead, and no living process is in it",
            f"{name}-half": "no process uses it",
            orphan.name: "slots that belong to no ring",
            f"{name}-guests": "dead, but it has 1 living peer",
            f"{name}-mine": f"its creator (pid {os.getpid()}) is alive, with 1 living peer",
            f"{name}-link": "it is a symbolic link, and no ring",
        }
        for each, reason in reasons.items():
            assert reason in told[each], told[each]
        status, lines, errors = said(name, *all_of_it)
        assert status == 1  # some of them stay
        for each in told.keys() - removed:
            assert f"gpuring clean: {each} stays: " in errors
        assert {line.split(":")[0].removeprefix("removed ") for line in lines} == removed
    inside.kill()
    link.unlink()
    assert cleaned(name) == [f"{name}-guests"]


def test_the_sockets_of_the_dead_are_removed():
    place = Path(f"/dev/shm/gpuring+{secrets.token_hex(16)}")
    place.mkdir()
    foreseen = command("clean", "--dry-run").stdout
    assert f"{place.name} would be removed: sockets of the dead" in foreseen
    assert place.exists()
    assert f"removed {place.name}: sockets of the dead" in command("clean").stdout
    assert not place.exists()


def test_only_what_was_named_is_removed(name, children):
    names = [f"{name}-a", f"{name}-b"]
    for each in names:
        child = up(children(owner, each))
        child.kill()
    status, (line,), errors = said(name, names[0])
    assert (status, errors) == (0, "")
    assert line.startswith(f"removed {names[0]}: its creator (pid ")
    assert segments_of(names[0]) == []
    assert len(segments_of(names[1])) == 2
    with gpuring.create(name, **OPTIONS):
        status, lines, errors = said(name, name, f"{name}-none", names[1])
    assert status == 1
    assert [line.split(":")[0] for line in lines] == [f"removed {names[1]}"]
    assert f"{name} stays: its creator (pid {os.getpid()}) is alive" in errors
    assert f"no ring named '{name}-none' on this host" in errors


# ---- two who change one name at once -----------------------------------------------------------


def test_clean_does_not_take_the_slots_of_a_ring_that_is_born_meanwhile(name, monkeypatch):
    """Slots have a name before their ring has one, and are locked until then.  So clean looks at
    the lock first, and for the ring second.  native/api/test_taking.py stops in between."""
    slots_are_there, go_on, rings = threading.Event(), threading.Event(), []
    take_name = native.take_name

    def paused(*args):
        slots_are_there.set()
        assert go_on.wait(20)
        take_name(*args)

    monkeypatch.setattr(native, "take_name", paused)
    birth = threading.Thread(target=lambda: rings.append(gpuring.create(name, **OPTIONS)))
    birth.start()
    assert slots_are_there.wait(20)
    removed = cleaned(name)
    go_on.set()
    birth.join()
    monkeypatch.undo()
    with rings[0]:
        assert removed == []
        gpuring.attach(name).close()


def test_clean_takes_slots_of_another_epoch_and_leaves_those_of_the_living(name):
    with gpuring.create(name, **OPTIONS):
        stray = Path(f"/dev/shm/gpuring.{name}+{'0' * 32}")
        stray.write_bytes(b"x")
        assert cleaned(name) == [stray.name]
        gpuring.attach(name).close()


def test_the_next_ring_takes_slots_away_that_a_killed_creator_has_left(name):
    """The creator of the first ring of its name: no header says that there was one."""
    stray = Path(f"/dev/shm/gpuring.{name}+{'0' * 32}")
    stray.write_bytes(b"x")
    with gpuring.create(name, **OPTIONS):
        assert not stray.exists()


def test_clean_leaves_the_slots_of_a_living_ring_of_another_version(name):
    """Only builds of that version know which slots belong to the ring."""
    with gpuring.create(name, **OPTIONS) as ring:
        before = segments_of(name)
        with Path(f"/dev/shm/gpuring.{name}").open("r+b") as file:
            file.seek(8)
            file.write(b"\1")
        assert cleaned(name) == []
        assert segments_of(name) == before
        assert not ring.closed


def test_clean_leaves_a_ring_that_somebody_has_attached_to(name, children):
    """The process that has attached may join at any moment.  Others have to find the ring then."""
    child = up(children(owner, name))
    with gpuring.attach(name) as ring:
        child.kill()
        assert cleaned(name) == []
        with ring.consumer():
            gpuring.attach(name).close()


def test_without_a_listing_there_is_nothing_to_clean(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SHM", tmp_path / "missing")
    assert gpuring.clean() == []
