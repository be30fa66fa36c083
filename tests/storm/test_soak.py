"""Short soaks; `python -m tests.storm soak` and `calls` are long ones."""

from __future__ import annotations

import pytest

from tests.helpers.support import ON_GPU
from tests.storm import calls
from tests.storm.harness import storm
from tests.storm.soak import Soak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "seconds"),
    [("host", 8.0), *(pytest.param(each.name, 20.0, marks=pytest.mark.gpu) for each in ON_GPU)],
)
def test_the_books_balance_while_peers_come_and_go_and_die(where, seconds):
    result = storm(Soak, where=where, seconds=seconds, seed=1).result()
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
