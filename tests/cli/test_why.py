"""`gpuring why` names who keeps a pipeline waiting, over several rings.  It names nobody if frames
move."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import gpuring
from gpuring.cli.inspect import describe
from gpuring.cli.why import advice
from gpuring.cli.why import told as told_of
from gpuring.registry import importers, segment, survey
from gpuring.registry.jams import jams
from gpuring.registry.stats import NO_SESSION_S
from gpuring.registry.subscriptions import read_elsewhere
from tests.cli.planted import PLANTED, Blame, a_bridge_whose_other_side_does_not_read
from tests.cli.processes import reader, reads_on, up
from tests.helpers.processes import PATIENCE_S, SOMEBODY, poll
from tests.helpers.rings import put, small_ring
from tests.service.parts import part, read
from tests.service.services import send, serve

AFTER_S = 0.3


def blamed(jam):
    first = jam.culprits[0]
    return Blame(first.reason, first.peers[0].pid if first.peers else None, first.subscription)


def stuck(command, name):
    """The answer of `why`, or None if nothing was stuck when it looked."""
    done = command("why", name, "--after", AFTER_S)
    return done if done.returncode == 1 else None


@pytest.mark.parametrize("plant", PLANTED)
def test_it_names_the_culprit(name, children, command, plant):
    if any(word in plant for word in ("bridge", "importer", "exporter", "far")):
        pytest.importorskip("zmq")
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


def test_producers_wait_for_the_next_reader_of_a_durable_subscription(name, children):
    with PLANTED["a_stopped_reader"](children, name) as blame, gpuring.attach(name) as ring:
        ring.subscribe("recorder")
        (jam,) = poll(lambda: [j for j in jams(look(name)) if blamed(j) == blame])
        then = "producers wait for the next reader of subscription 'recorder'"
        assert f"), {then}." in advice(jam.culprits[0])


@pytest.mark.parametrize(
    "subscription",
    ["bridge: vm/optr's far", "-lead", "esc\x1b[31m it's \\ \n", "\x85\u202eé", "a`b`$c"],
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


@contextlib.contextmanager
def process_1_of_a_pid_namespace(name):
    """A process that holds a frame of the ring.  Yields its pid in this namespace."""
    if subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("no pid namespaces here")
    begin = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c"]
    with subprocess.Popen(
        [*begin, IN_A_CONTAINER, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
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


def look(name, *others):
    return [one for one in gpuring.ls() if one.name.startswith(name) and one.name not in others]


def is_whole(jam):
    """Whether both rings are full, and everybody who needs a slot sleeps."""
    return len(jam.steps) == 2 and all(step.waiting for step in jam.steps)


def test_a_chain_names_each_wait(name, children):
    """camera → name → detector → name-seen → page, which is stopped."""
    with PLANTED["a_full_ring_further_on"](children, name) as blame:
        jam = poll(lambda: next((j for j in jams(look(name)) if is_whole(j)), None))
        assert blamed(jam) == blame
        assert [(step.ring, step.wants) for step in jam.steps] == [
            (name, "slot"),
            (f"{name}-seen", "slot"),
        ]
        assert [step.by[0].label for step in jam.steps] == ["detector", "page"]
        assert [peer.label for step in jam.steps for peer in step.waiting] == ["camera", "detector"]


def test_a_dead_ring_is_told_since_something_has_happened_there(name, children):
    with PLANTED["a_ring_in_which_all_are_dead"](children, name):
        (one,) = look(name)
        assert one.state == "dead"
        old = dataclasses.replace(one, created_ns=one.created_ns - 10**12)
        signs = [one.published_s, *(each.age_s for each in (*one.peers, *one.deaths))]
        assert jams([old])[0].age_s == min(signs)
        nobody = dataclasses.replace(old, peers=(), deaths=(), subscriptions=(), published_s=7.0)
        assert jams([nobody])[0].age_s == 7.0
        twice = dataclasses.replace(old, peers=old.peers * 2)
        assert jams([twice])[0].steps[0].why == jams([old])[0].steps[0].why


def test_a_producer_is_not_asked_for_where_the_creator_is_dead(name, children):
    with PLANTED["a_ring_whose_creator_was_killed"](children, name):
        one = poll(lambda: [each for each in look(name) if not each.producers])[0]
        step = poll(lambda: jams(look(name)))[0].steps[0]
        assert blamed(jams(look(name))[0]).reason == "no creator"
        assert step.why.endswith(f"its creator (pid {one.creator_pid}) is dead")


def said(done):
    return done.stdout + done.stderr


@pytest.mark.parametrize("durable", [True, False])
def test_who_waits_for_the_next_ring_is_told(name, children, command, durable):
    with small_ring(name, subscriptions=["recorder"] if durable else []):
        viewer = up(children(reads_on, name, "viewer"))
    if durable:  # the name stays
        told = f"viewer (pid {viewer.pid}) waits for the next ring {name}."
    else:
        told = f"Ring {name} was closed or removed. It is still used by pid {viewer.pid} ("
        assert told in command("why").stdout
    poll(lambda: told in said(command("why", name, "--after", 0)))
    assert command("why", name).returncode == (0 if durable else 3)


def test_the_same_culprit_is_told_once(name, children):
    with small_ring(f"{name}-a") as one, small_ring(f"{name}-b") as other:
        slow = up(children(two_rings, one.name, other.name))
        with one.producer() as first, other.producer() as second:
            put(first, 4)
            put(second, 4)
            (jam,) = jams(look(name))
            assert blamed(jam).pid == slow.pid
            assert sorted(jam.rings) == [one.name, other.name]


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


def two_rings(pipe, *names):
    consumers = [gpuring.attach(each).consumer("slow") for each in names]
    pipe.send()
    pipe.receive()
    del consumers


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


def test_a_call_whose_parts_are_read_is_no_jam_however_long_it_takes(name):
    with serve(name) as server, gpuring.connect(name, parts=2) as client:
        parts = send(client, 0).parts(PATIENCE_S)
        (call,) = server.take(timeout=PATIENCE_S)
        part(call, 0)
        assert read(parts, 1) == [0]
        (jam,) = poll(lambda: jams(look(name), AFTER_S))
        assert blamed(jam).pid == os.getpid()
        assert parts.ready is False  # releases it
        part(call, 1)
        assert read(parts, 1) == [1]
        assert parts.ready is False
        seen = look(name)
        had_s = max(hold.age_s for one in seen for peer in one.peers for hold in peer.holding)
        assert had_s > AFTER_S
        assert jams(seen, had_s) == []
        call.end()
        assert read(parts) == []


def test_all_members_that_do_not_read_are_named(name, children):
    with small_ring(name) as ring, ring.producer() as producer:
        members = [up(children(two_rings, name)) for _ in range(2)]
        put(producer, 4)
        (jam,) = jams(look(name))
        assert {end.peers[0].pid for end in jam.culprits} == {each.pid for each in members}
        members[1].stop()
        (jam,) = jams(look(name))
        assert blamed(jam) == Blame("stopped", members[1].pid, "slow")


def test_who_keeps_a_far_ring_waiting_that_is_not_here_is_asked_over_there(name, children):
    pytest.importorskip("zmq")
    far = f"{name}-far"
    with a_bridge_whose_other_side_does_not_read(children, name):
        (jam,) = poll(lambda: [j for j in jams(look(name, far)) if blamed(j).reason == "far"])
        assert far in blamed(jam).subscription


def test_the_command_that_starts_an_importer_again_is_told_on_both_hosts(name, children, command):
    pytest.importorskip("zmq")
    far = f"{name}-far"

    def commanded(ring):
        """The names of culprits that can be started again, as a host with this ring sees it."""
        alone = [one for one in look(name) if one.name == ring]
        return [end for jam in jams(alone) for end in jam.culprits if end.command]

    wanted = f"`gpuring bridge import {socket.gethostname()}:PORT/{name} --as {far}"
    with PLANTED["an_importer_that_was_killed"](children, name):
        for seen, more in ((far, " --slots 4 --device host`"), (name, "`")):
            (end,) = poll(lambda: commanded(seen))  # noqa: B023
            assert f"{wanted}{more}" in advice(end)
            if seen == far:  # it goes on there, so that nobody has to remove the ring
                assert "gpuring clean" not in advice(end)


def test_a_name_that_was_cut_off_is_not_told_in_a_command():
    assert importers.of_near_ring("cam0", read_elsewhere("vm/cam0")).endswith(":PORT/cam0")
    assert importers.of_near_ring("cam0", read_elsewhere("vm/far")).endswith("/cam0 --as far")
    assert importers.of_near_ring("cam0", read_elsewhere(f"vm/{'far' * 50}")).endswith(" --as NAME")


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


def test_an_importer_that_is_stopped_is_told_on_its_own_host(name, children):
    """The near ring cannot be seen there, and readers only wait."""
    pytest.importorskip("zmq")
    with PLANTED["an_importer_that_is_stopped"](children, name) as blame:
        (jam,) = poll(lambda: jams(look(f"{name}-far")))
        assert blamed(jam) == blame
        assert [(step.ring, step.wants) for step in jam.steps] == [(f"{name}-far", "frame")]
        poll(lambda: [each.label for each in jams(look(f"{name}-far"))[0].steps[0].waiting])


def test_an_importer_that_is_stopped_is_to_blame_though_nobody_reads_its_ring(name, children):
    pytest.importorskip("zmq")

    def unread(one):
        return dataclasses.replace(one, peers=one.producers) if one.link else one

    with PLANTED["an_importer_that_is_stopped"](children, name) as blame:
        poll(lambda: [blamed(jam) for jam in jams(map(unread, look(name)))] == [blame])


def test_a_bridge_that_has_no_connection_is_told_on_the_far_host(name, command):
    pytest.importorskip("zmq")
    from tests.bridge.bridges import bridged

    far = f"{name}-far"
    with small_ring(name), bridged(name, far, slots=4):
        one = poll(lambda: [each for each in look(far) if each.link and each.link.connected])[0]
        assert jams([one]) == []
        silent = dataclasses.replace(one, link=dataclasses.replace(one.link, heard_s=NO_SESSION_S))
        (jam,) = jams([silent])
        assert blamed(jam) == Blame("no session")
        assert jam.age_s == NO_SESSION_S
        assert "no connection to the other host for 20.0 s" in told_of(jam)
        assert "no connection to" in describe(silent)
        assert "no connection to" not in describe(one)
        assert jams([dataclasses.replace(silent, closed=True)]) == []


def test_a_bridge_measures_more_often_than_it_is_taken_for_unconnected():
    pytest.importorskip("zmq")
    from gpuring.bridge.importer import near_clock

    clock, asked_ns = near_clock.NearClock(), 0
    best = near_clock.Clock(0, 10**9, 0)
    for n in range(200):  # each round trip is longer than the one before it
        asked_ns = n * near_clock.ASK_NS
        asked = clock.ask(asked_ns)
        best = clock.heard(near_clock.wire.Time(asked.asked_ns, 0), asked_ns + 10**6 * (n + 1))
    assert asked_ns - best.time_ns < NO_SESSION_S * 1e9


def test_a_gpu_that_does_not_finish_is_to_blame_and_not_who_has_its_frame(rig):
    ring = rig("timeline")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(4, 0).publish()
    held = consumer.acquire_many(4, 0)
    seen = survey.collect("r", ring.segment.creator)
    (jam,) = jams([seen])
    assert [step.wants for step in jam.steps] == ["slot", "gpu"]
    (end,) = jam.culprits
    assert (end.reason, end.peers[0].number, end.seq) == ("gpu", producer.peer, held[0].seq)
    ring.finish()
    (jam,) = jams([survey.collect("r", ring.segment.creator)])
    assert jam.culprits[0].peers[0].number == consumer.peer
    assert jam.culprits[0].reason == "holds"
    held.release()
    (jam,) = jams([survey.collect("r", ring.segment.creator)])
    assert (jam.culprits[0].reason, jam.culprits[0].peers[0].number) == ("gpu", consumer.peer)
    ring.finish()
    assert jams([survey.collect("r", ring.segment.creator)]) == []


def test_who_is_stopped_is_not_to_blame_for_its_gpu(rig):
    """A kernel goes on while its process is stopped."""
    ring = rig("timeline")
    ring.producer().claim(0).publish()
    seen = survey.collect("r", ring.segment.creator)
    stopped = tuple(dataclasses.replace(peer, stopped=True) for peer in seen.peers)
    (jam,) = jams([dataclasses.replace(seen, peers=stopped)])
    assert blamed(jam).reason == "gpu"


def test_an_event_that_nobody_has_looked_at_is_no_jam(rig):
    """The fence of an event rises when somebody looks at it.  So a low fence does not mean that the
    GPU is busy."""
    ring = rig("event")
    producer, consumer = ring.producer(), ring.consumer()
    producer.claim_many(4, 0).publish()
    assert survey.collect("r", ring.segment.creator).producers[0].unfinished
    consumer.acquire_many(3, 0).release()
    assert jams([survey.collect("r", ring.segment.creator)]) == []
    held = consumer.acquire(0)
    producer.claim_many(3, 0).publish()
    (jam,) = jams([survey.collect("r", ring.segment.creator)])
    assert (jam.culprits[0].reason, jam.culprits[0].seq) == ("holds", held.seq)
