"""A short storm; `python -m tests.storm services` is the long one."""

from __future__ import annotations

import pytest

from tests.storm.harness import storm
from tests.storm.services import Services


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("redeliver", [True, False])
def test_every_call_of_the_living_ends_in_a_storm_of_signals(redeliver):
    found = storm(Services, seconds=5.0, seed=1, redeliver=redeliver)
    assert found.counts["answered"] > 10
