"""A short soak; `python tests/soak.py --seconds 600` is the long one."""

from __future__ import annotations

import pytest
import soak


@pytest.mark.slow
@pytest.mark.deadline(200)
@pytest.mark.parametrize(
    ("where", "seconds"),
    [("host", 8.0), pytest.param("cuda-timeline", 20.0, marks=pytest.mark.gpu)],
)
def test_the_books_balance_while_peers_come_and_go_and_die(where, seconds):
    result = soak.soak(seconds, where, seed=1)
    assert result["published"] > 100
    assert any(event.startswith("kill") for event in result["events"])
