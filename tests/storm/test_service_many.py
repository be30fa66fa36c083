"""A service with many client processes, some of which are killed."""

from __future__ import annotations

import pytest

from tests.helpers.promise import promise
from tests.storm.clients import Clients
from tests.storm.harness import storm


@promise("services.md", "So there is room for 200 clients and 8 engines, for example.")
@pytest.mark.slow
def test_many_clients_and_engines_some_of_them_killed():
    """More peers than the first word of a mask has; `python -m tests.storm clients` has 200 + 8."""
    found = storm(Clients, clients=66, engines=4, calls=8, kills=6, seed=1, patience=110.0)
    assert found.counts["kill client"] == found.counts["kill engine"] == 3
