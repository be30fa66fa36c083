"""A service with many client processes, some of which are killed."""

from __future__ import annotations

import pytest

from tests.service.many_clients import play


@pytest.mark.slow
@pytest.mark.deadline(120)
def test_many_clients_and_engines_some_of_them_killed(name):
    """More peers than the first word of a mask has; `many_clients` runs 200 + 8."""
    played = play(name, clients=66, engines=4, calls=8, kills=6, deadline_s=110)
    assert played["killed clients"] == played["killed engines"] == 3
