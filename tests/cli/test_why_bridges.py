"""`gpuring why` on the hosts of a bridge, each of which sees one of its rings."""

from __future__ import annotations

import dataclasses
import socket

import pytest

from gpuring.cli.inspect import describe
from gpuring.cli.why import advice
from gpuring.cli.why import told as told_of
from gpuring.registry import importers
from gpuring.registry.jams import jams
from gpuring.registry.stats import NO_SESSION_S
from gpuring.registry.subscriptions import read_elsewhere
from tests.cli.planted import PLANTED, Blame, blamed, look
from tests.helpers.processes import poll
from tests.helpers.rings import small_ring

pytest.importorskip("zmq")

from gpuring import bridge
from gpuring.bridge.importer import near_clock
from tests.bridge.bridges import bridged


def test_who_keeps_a_far_ring_waiting_that_is_not_here_is_asked_over_there(name, children):
    far = f"{name}-far"
    with PLANTED["a_bridge_whose_other_side_does_not_read"](children, name):
        (jam,) = poll(lambda: [j for j in jams(look(name, far)) if blamed(j).reason == "far"])
        assert far in blamed(jam).subscription
        assert len(jam.culprits) == 1  # it has two members, the worker and its supervisor


def test_the_command_that_starts_an_importer_again_is_told_on_both_hosts(name, children, command):
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


def test_an_importer_is_missing_where_the_exporter_runs_and_reads_nothing(name, children):
    """After both were killed, an exporter that was started again waits for its importer."""
    with (
        bridge.export(name, listen="127.0.0.1:0"),
        PLANTED["a_bridge_without_its_exporter"](children, name) as blame,
    ):
        (jam,) = poll(lambda: jams(look(name)))
        assert blamed(jam) == blame
        start = f"`gpuring bridge import {socket.gethostname()}:PORT/{name} --as far`"
        assert f"`gpuring bridge export {name}` does not run here" in advice(jam.culprits[0])
        assert start in advice(jam.culprits[0])
        assert "is gone" not in told_of(jam)


def test_a_name_that_was_cut_off_is_not_told_in_a_command():
    assert importers.of_near_ring("cam0", read_elsewhere("vm/cam0")).endswith(":PORT/cam0")
    assert importers.of_near_ring("cam0", read_elsewhere("vm/far")).endswith("/cam0 --as far")
    assert importers.of_near_ring("cam0", read_elsewhere(f"vm/{'far' * 50}")).endswith(" --as NAME")


def test_an_importer_that_is_stopped_is_told_on_its_own_host(name, children):
    """The near ring cannot be seen there, and readers only wait."""
    with PLANTED["an_importer_that_is_stopped"](children, name) as blame:
        (jam,) = poll(lambda: jams(look(f"{name}-far")))
        assert blamed(jam) == blame
        assert [(step.ring, step.wants) for step in jam.steps] == [(f"{name}-far", "frame")]
        poll(lambda: [each.label for each in jams(look(f"{name}-far"))[0].steps[0].waiting])


def test_an_importer_that_is_stopped_is_to_blame_though_nobody_reads_its_ring(name, children):
    def unread(one):
        return dataclasses.replace(one, peers=one.producers) if one.link else one

    with PLANTED["an_importer_that_is_stopped"](children, name) as blame:
        poll(lambda: [blamed(jam) for jam in jams(map(unread, look(name)))] == [blame])


def test_a_bridge_that_has_no_connection_is_told_on_the_far_host(name, command):
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
    clock, asked_ns = near_clock.NearClock(), 0
    best = near_clock.Clock(0, 10**9, 0)
    for n in range(200):  # each round trip is longer than the one before it
        asked_ns = n * near_clock.ASK_NS
        asked = clock.ask(asked_ns)
        best = clock.heard(near_clock.wire.Time(asked.asked_ns, 0), asked_ns + 10**6 * (n + 1))
    assert asked_ns - best.time_ns < NO_SESSION_S * 1e9
