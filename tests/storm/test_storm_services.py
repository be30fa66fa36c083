"""A short storm; `python -m tests.storm services --seconds 3600` is the long one."""

from __future__ import annotations

import pytest

from tests.storm import services as storm_services


@pytest.mark.slow(keep=1)
@pytest.mark.deadline(200)
@pytest.mark.parametrize("redeliver", [True, False])
def test_every_call_of_the_living_ends_in_a_storm_of_signals(redeliver):
    result = storm_services.storm(5.0, 1, redeliver)
    assert result["ends"]["answered"] > 10
