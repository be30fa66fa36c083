"""`gpuring why` names who keeps a pipeline waiting, over several rings.  It names nobody if frames
move."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpuring
from gpuring.cli.why import advice
from gpuring.registry import directory, segment
from gpuring.registry.jams import jams
from gpuring.tracing.who import Known
from tests.cli.planted import PLANTED, Blame, blamed, look
from tests.cli.processes import reader, reads_on
from tests.helpers.processes import SOMEBODY, poll, up
from tests.helpers.rings import put, small_ring
from tests.helpers.words import locked

AFTER_S = 0.3


def stuck(command, name):
    """The answer of `why`, or None if nothing was stuck when it looked."""
    done = command("why", name, "--after", AFTER_S)
    return done if done.returncode == 1 else None


@pytest.mark.parametrize("plant", PLANTED)
def test_it_names_the_culprit(name, children, command, plant):
    with PLANTED[plant](children, name) as blame:
        # on a busy machine others may be slow first
        poll(lambda: told(command, name, blame) == [[blame]])
        done = poll(lambda: stuck(command, name))  # a reader of several rings does not always wait
        assert str(blame.pid or name) in done.stdout
        assert "`" not in done.stdout.partition("What to do: ")[0]  # each command is named once


def test_a_program_that_cannot_replace_a_ring_is_told_how_to_go_on(name, children, command):
    """The advice also helps those who get RingExists."""
    with PLANTED["a_ring_in_which_all_are_dead"](children, name) as blame:
        poll(lambda: told(command, name, blame) == [[blame]])
        advice = command("why", name, "--after", AFTER_S).stdout.partition("What to do: ")[2]
        assert "If it fails because the ring exists" in advice
        assert f"`gpuring clean {name}`" in " ".join(advice.split())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_root_is_told_as_whom_to_remove_a_dead_ring(name, children, command):
    with PLANTED["a_ring_in_which_all_are_dead"](children, name) as blame:
        poll(lambda: told(command, name, blame) == [[blame]])
        header = Path(segment.path_of(segment.header_name(name)))
        os.chown(header, SOMEBODY, -1)
        advice = command("why", name, "--after", AFTER_S).stdout.partition("What to do: ")[2]
        os.chown(header, 0, -1)
        step = f"`sudo -u '#{SOMEBODY}' gpuring clean {name}` removes what is left of it"
        assert step in " ".join(advice.split())


def creates(pipe, *names):
    with contextlib.ExitStack() as until:
        for each in names:
            until.enter_context(small_ring(each))
        pipe.ask()


def test_dead_rings_of_one_process_are_told_together(name, children, command):
    rings = [f"{name}-a", f"{name}-b"]
    made_them = up(children(creates, *rings))
    made_it = up(children(creates, name))
    made_them.kill()
    made_it.kill()
    try:
        poll(lambda: {*rings, name} <= {jam.culprits[0].ring for jam in jams(gpuring.ls())})
        alone, together = sorted(of_rings(command("why", "--after", 0).stdout, name), key=len)
        assert alone.startswith(f"{name} is dead. ")
        assert " are dead. All processes of these rings are dead, and nothing has " in together
        assert together.count(f"its creator (pid {made_them.pid})") == 2
        assert "What to do: Restart the program that created them. " in together
        cleaning = "`gpuring clean NAME NAME` removes what is left of them."
        assert together.replace(rings[0], "NAME").replace(rings[1], "NAME").endswith(cleaning)
        (one,) = of_rings(command("why", rings[0], "--after", 0).stdout, name)
        assert one.startswith(f"{rings[0]} is dead. ")
        assert rings[1] not in one
        if os.geteuid() == 0:  # a process of another user has had the same pid
            header = segment.path_of(segment.header_name(rings[1]))
            os.chown(header, SOMEBODY, -1)
            told_apart = of_rings(command("why", "--after", 0).stdout, name)
            os.chown(header, 0, -1)
            assert len(told_apart) == 3
    finally:
        for each in (*rings, name):
            gpuring.unlink(each)


def of_rings(said, name):
    """The paragraphs that begin with rings of a test."""
    paragraphs = (" ".join(each.split()) for each in said.split("\n\n"))
    return [each for each in paragraphs if each.startswith(name)]


def test_a_service_without_engines_says_who_was_the_last_one(name, children, command):
    with PLANTED["a_service_whose_only_engine_was_killed"](children, name):
        poll(lambda: dead(name))
        said = " ".join(command("why", name, "--after", 0).stdout.split())
        (engine,) = dead(name)
    assert f"for service {name}, and nobody takes calls: it has no engine since" in said
    assert f"(pid {engine}) died" in said


def dead(name):
    return {each.pid for one in gpuring.ls() if one.name == name for each in one.deaths}


THEN = {
    "a_stopped_camera": "readers wait until ring {} has another producer",
    "a_claim_that_is_never_published": "readers wait until ring {} has another producer",
    "a_stopped_engine": "clients wait until service {} has another engine",
    "a_stopped_reader": "the others go on without it",
}


@pytest.mark.parametrize("plant", THEN)
def test_it_says_what_happens_if_the_culprit_is_ended(name, children, plant):
    with PLANTED[plant](children, name) as blame:
        (jam,) = poll(lambda: [j for j in jams(look(name)) if blamed(j) == blame])
        assert f"), {THEN[plant].format(name)}." in advice(jam.culprits[0])


def test_who_is_not_the_only_producer_can_be_ended(name, children):
    plant = PLANTED["a_claim_that_is_never_published"]
    with plant(children, name) as blame, gpuring.attach(name) as ring, ring.producer():
        (jam,) = poll(lambda: [j for j in jams(look(name)) if blamed(j) == blame])
        assert "), the others go on without it." in advice(jam.culprits[0])


@pytest.mark.parametrize(("patience", "told"), [(None, "wait"), (60, "wait for up to 1m00s")])
def test_producers_wait_for_the_next_reader_of_a_durable_subscription(
    name, children, patience, told
):
    with PLANTED["a_stopped_reader"](children, name) as blame, gpuring.attach(name) as ring:
        ring.subscribe("recorder", patience=patience)
        (jam,) = poll(lambda: [j for j in jams(look(name)) if blamed(j) == blame])
        then = f"producers {told} for the next reader of subscription 'recorder'"
        assert f"), {then}." in advice(jam.culprits[0])


@pytest.mark.parametrize(
    "subscription",
    ["bridge: vm/optr's far", "-lead", "--", "esc\x1b[31m it's \\ \n", "\x85\u202eé", "a`b`$c"],
)
def test_the_command_that_it_tells_to_type_does_it(name, command, monkeypatch, subscription):
    """Names of subscriptions may have spaces.  Those of bridges have some."""
    monkeypatch.setenv("COLUMNS", "80")
    with small_ring(name) as ring, ring.producer() as producer:
        ring.subscribe(subscription)
        put(producer, 4)
        advice = command("why", name, "--after", 0).stdout.partition("What to do: ")[2]
        (typed,) = re.findall("`gpuring (unsubscribe [^`]*)`", advice)
        assert typed.isprintable()
        shell = ["bash", "-c", f"printf '%s\\0' {typed}"]
        read = subprocess.run(shell, capture_output=True, check=True).stdout.decode()
        assert command(*read.split("\0")[:-1]).returncode == 0
        assert not ring.stats().subscriptions


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_who_may_not_read_a_ring_is_not_told_that_all_is_well(name, command):
    def as_somebody(*options):
        os.setresuid(SOMEBODY, SOMEBODY, 0)
        try:
            return command("why", *options)
        finally:
            os.setresuid(0, 0, 0)

    with small_ring(name) as ring, ring.producer() as producer:
        assert command("why", name).returncode == 0
        ring.subscribe("recorder")
        put(producer, 4)
        assert command("why", name, "--after", 0).returncode == 1
        done = as_somebody("--after", 10**6)  # nothing that is stuck elsewhere is as old
        assert done.returncode == 3
        assert "that can be read here" in done.stdout
        assert "Only their owners and root can read" in done.stdout
        named = as_somebody(name, "--after", 0)
        assert (named.returncode, named.stdout) == (3, "")
        assert name in named.stderr


IN_A_CONTAINER = """
import sys, gpuring
with gpuring.attach(sys.argv[1]) as ring, ring.consumer("recorder", label="slow") as frames:
    print(flush=True)
    with frames.acquire():
        sys.stdin.read()
"""


CREATES_IN_A_CONTAINER = """
import sys, gpuring
with gpuring.create(sys.argv[1], slots=4, shape=8, dtype="u1", device="host") as ring:
    with ring.producer(label="camera"):
        print(flush=True)
        sys.stdin.read()
"""


@contextlib.contextmanager
def process_1_of_a_pid_namespace(name, program=IN_A_CONTAINER):
    """A process that holds a frame of the ring.  Yields its pid in this namespace."""
    if subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("no pid namespaces here")
    begin = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c"]
    with subprocess.Popen(
        [*begin, program, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as outer:
        try:
            assert outer.stdout.readline()
            yield int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
        finally:
            outer.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a pid namespace")
def test_who_is_in_a_container_is_told_by_the_pid_that_is_valid_here(name, command):
    with small_ring(name) as ring, ring.producer() as producer:
        with process_1_of_a_pid_namespace(name) as pid:
            put(producer, 4)
            done = poll(lambda: seen_holding(command, name))
            (jam,) = jams(look(name))
            namespace = jam.culprits[0].peers[0].namespace
            assert f"slow (pid 1 of pid namespace {namespace}, here {pid})" in done
            assert f"`kill {pid}`" in done
            assert str(pid) in command("inspect", name).stdout

            hidden = dataclasses.replace(jam.culprits[0].peers[0], pid_here=None)
            told = advice(dataclasses.replace(jam.culprits[0], peers=(hidden,)))
            assert "`kill PID`" in told
            assert f"`lsns {namespace}`" in told

            os.kill(pid, signal.SIGSTOP)
            (jam,) = poll(lambda: [j for j in jams(look(name)) if blamed(j).reason == "stopped"])
            assert f"`kill -CONT {pid}`" in advice(jam.culprits[0])
            os.kill(pid, signal.SIGCONT)
        poll(lambda: not look(name)[0].peers[1:])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a pid namespace")
def test_a_creator_in_a_container_is_told_as_one(name, command):
    with process_1_of_a_pid_namespace(name, CREATES_IN_A_CONTAINER) as pid:
        assert " by pid 1 of another pid namespace (alive)" in command("inspect", name).stdout
        stays = " ".join(command("clean", "--dry-run", name).stdout.split())
        assert "its creator (pid 1 of another pid namespace) is alive" in stays
        known = Known()
        known.look(directory.read(name))
        (camera,) = known.peers.values()
        assert camera.name == "camera (of another pid namespace), pid 1"
        os.kill(pid, signal.SIGKILL)  # before its input ends, which would close the ring
        poll(lambda: look(name)[0].state == "dead")
    assert "its creator (pid 1 of another pid namespace)" in jams(look(name))[0].steps[0].why
    gpuring.unlink(name)


def seen_holding(command, name):
    done = command("why", name, "--after", 0).stdout
    return (
        " ".join(done.split()) if "has held sequence" in done.partition("What to do")[0] else None
    )


def test_a_name_that_is_not_there_has_a_status_of_its_own(name, command):
    done = command("why", name)
    assert (done.returncode, done.stdout) == (3, "")
    assert name in done.stderr
    assert command("why", "no/name").returncode == 2


def told(command, name, blame):
    """All culprits of each jam, as `gpuring why --json` gives them, checked against `blame`."""
    done = command("why", name, "--after", AFTER_S, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == bool(found)
    return [
        [
            Blame(
                end["reason"],
                end["peers"][0]["pid"] if end["peers"] else None,
                blame.subscription and end["subscription"],
            )
            for end in jam["culprits"]
        ]
        for jam in found
    ]


def said(done):
    return done.stdout + done.stderr


@pytest.mark.parametrize("durable", [True, False])
def test_who_waits_for_the_next_ring_is_told(name, children, command, durable):
    with small_ring(name, subscriptions=["recorder"] if durable else []):
        viewer = up(children(reads_on, name, "viewer"))
    if durable:  # the name stays
        told = f"viewer (pid {viewer.pid}) waits for the next ring {name}."
    else:
        told = f"Ring {name} was closed, removed or replaced. It is still used by pid "
        told += f"{viewer.pid} ("
        assert told in command("why").stdout
    poll(lambda: told in said(command("why", name, "--after", 0)))
    assert command("why", name).returncode == (0 if durable else 3)


def test_who_is_stopped_in_a_ring_that_was_replaced_is_told(name, children, command):
    with small_ring(name) as ring, gpuring.attach(name):
        viewer = up(children(reader, name, "viewer"))
        os.kill(viewer.pid, signal.SIGSTOP)
        poll(lambda: any(peer.stopped for peer in ring.stats().peers))
        assert "replaced" not in command("why", name).stdout
        with small_ring(name, replace=True):
            told = " ".join(command("why", name).stdout.split())
            os.kill(viewer.pid, signal.SIGCONT)
            poll(lambda: "replaced" not in command("why", name).stdout)
    assert f"replaced. It is still used by pid {viewer.pid} (" in told
    assert f"`kill -CONT {viewer.pid}` continues" in told


def test_who_is_stopped_in_the_next_ring_is_not_told_of_the_former_one(name, children, command):
    """Its handle of the former ring is open as long as it goes on from there."""
    with small_ring(name):
        viewer = up(children(reads_on, name, "viewer"))
    with small_ring(name) as ring:
        poll(lambda: ring.stats().peers)
        os.kill(viewer.pid, signal.SIGSTOP)
        poll(lambda: any(peer.stopped for peer in ring.stats().peers))
        assert "replaced" not in command("why", name).stdout


@pytest.mark.parametrize("claimed", [False, True])
def test_readers_that_wait_for_the_same_are_told_together(name, children, command, claimed):
    with small_ring(name) as ring, contextlib.ExitStack() as until:
        if claimed:
            until.enter_context(until.enter_context(ring.producer()).claim())
        readers = [up(children(reader, name, each)) for each in ("viewer", "recorder", "page")]
        poll(lambda: sum(peer.waiting for peer in ring.stats().peers) == len(readers))
        (jam,) = jams(look(name))
        assert blamed(jam).reason == ("writes" if claimed else "no producer")
        assert len(jam.others) == len(readers) - 1
        said = " ".join(command("why", name, "--after", 0).stdout.split())
        assert said.count("What to do:") == 1
        assert [said.count(f"(pid {each.pid})") for each in readers] == [1, 1, 1]
        assert "wait for it as well" in said


def test_nothing_is_stuck_where_frames_move_though_slowly(name, command):
    """The ring is always full, and its oldest frame is always old.  Neither is a jam."""
    with small_ring(name) as ring, ring.producer() as producer, ring.consumer("slow") as slow:
        put(producer, 4)
        poll(lambda: command("why", name, "--after", AFTER_S).returncode)
        slow.acquire(0).release()
        put(producer, 1)
        seen = ring.stats()
        assert seen.subscriptions[0].taken_s < seen.in_the_way.age_s
        assert jams([seen], seen.in_the_way.age_s) == []
        assert jams([seen], seen.subscriptions[0].taken_s)


def test_nobody_is_to_blame_for_having_nothing_to_say(name, children, command):
    with small_ring(name) as ring, ring.producer():
        viewer = up(children(reader, name, "viewer"))
        poll(lambda: any(p.waiting for p in ring.stats().peers))
        done = command("why", name, "--after", 0)
        assert (done.returncode, str(viewer.pid) in done.stdout) == (0, False)


def test_how_much_patience_is_left_is_told(name):
    with small_ring(name) as ring, ring.producer() as producer:
        ring.subscribe("recorder", patience=1000)
        put(producer, 4)
        (jam,) = jams(look(name))
        (sub,) = look(name)[0].subscriptions
        assert jam.culprits[0].patience_s == pytest.approx(1000 - sub.unread_s, abs=1)
        assert "Producers go on by themselves in 16m" in advice(jam.culprits[0])
        endless = dataclasses.replace(jam.culprits[0], patience_s=None)
        assert "by themselves" not in advice(endless)


def stops_with_the_lock(_pipe, name):
    with locked(name):
        os.kill(os.getpid(), signal.SIGSTOP)


def test_who_was_stopped_with_the_membership_lock_is_told(name, children, command):
    with small_ring(name):
        assert command("why", name).returncode == 0
        joiner = children(stops_with_the_lock, name)
        done = poll(lambda: (said := command("why", name)).returncode and said)
        told = " ".join(done.stdout.split())
        assert told.startswith(f"Nobody can join or leave ring {name}: pid {joiner.pid} (")
        assert f"`kill -CONT {joiner.pid}` continues" in told
        assert command("why", name, "--json").returncode == 1
        os.kill(joiner.pid, signal.SIGCONT)
        poll(lambda: command("why", name).returncode == 0)
