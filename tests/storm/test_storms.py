"""Short storms, whose output has the seed.  `python -m tests.storm` runs long ones."""

from __future__ import annotations

import os

import pytest

from tests import ROOT
from tests.helpers.commands import module
from tests.helpers.places import ON_GPU
from tests.helpers.promise import promise
from tests.storm import calls
from tests.storm.clients import Clients
from tests.storm.harness import storm
from tests.storm.services import Services
from tests.storm.soak import Soak

FEW = [
    "keeper-0", "keeper-1", "anchor-0", "anchor-1", "alone-0", "writer-0", "writer-1", "jobs-0",
    "jobs-1",
]  # fmt: skip
STORMS = {
    "deaths": (["kill", "stop"], ["lossy-0", "newest-1", "awaiting-1", "crowd"]),
    "ends": (["term", "stop"], ["follower-0", "handing-1", "daemons", "select"]),
    "interrupts": (["int", "stop"], ["lossy-0", "awaiting-1", "awaitingwriter-0", "select"]),
    "everything": (["kill", "stop", "term", "int"], ["alone-1", "follower-1", "newest-0"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORMS)
def test_the_books_balance_after_a_storm(kind):
    signals, more = STORMS[kind]
    seed = list(STORMS).index(kind) + 1
    options = ["--seconds", "3", "--seed", str(seed), "--patience", "40"]
    options += ["--signals", *signals, "--roles", *FEW, *more]
    ended = module("tests.storm", "rings", *options, cwd=ROOT, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " published" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("redeliver", [True, False])
def test_every_call_of_the_living_ends_in_a_storm_of_signals(redeliver):
    found = storm(Services, seconds=5.0, seed=1, redeliver=redeliver)
    assert found.counts["answered"] > 10


@promise("services.md", "So there is room for 200 clients and 8 engines, for example.")
@pytest.mark.slow
def test_many_clients_and_engines_some_of_them_killed():
    """There are more peers than a word of a mask has bits.  `python -m tests.storm clients` has 200
    + 8."""
    found = storm(Clients, clients=66, engines=4, calls=8, kills=6, seed=1, patience=110.0)
    assert found.counts["kill client"] == found.counts["kill engine"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "seconds"),
    [("host", 8.0), *(pytest.param(each.name, 20.0, marks=pytest.mark.gpu) for each in ON_GPU)],
)
def test_the_books_balance_while_peers_come_and_go_and_die(where, seconds):
    beside_others = "PYTEST_XDIST_WORKER" in os.environ
    result = storm(Soak, where=where, seconds=seconds, seed=1, crowded=beside_others).result()
    assert result["published"] > 100
    assert any(event.startswith("kill") for event in result["events"])


@pytest.mark.slow
def test_a_service_uses_no_more_after_many_calls_than_after_a_few():
    assert storm(calls.Calls, calls=4000).rows[-1]["calls"] == 4000


@pytest.mark.slow
def test_a_soak_finds_calls_that_are_kept(monkeypatch):
    kept, check = [], calls.check

    def leaks(k, call):
        check(k, call)
        kept.append(call)

    monkeypatch.setattr(calls, "check", leaks)
    with pytest.raises(AssertionError, match="client objects grew by"):
        storm(calls.Calls, calls=4000)
