"""What a command refuses, it refuses with the reason."""

from __future__ import annotations

import pytest
from commands import gpuring


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("inspect", "../x"), "cannot name a ring"),
        (("tap", "x", "--out", "y", "--rate", "1e9"), "a number below 1e9, not 1e9"),
        (("tap", "x", "--out", "y", "--rate", "0"), "a number above 0, not 0"),
        (("tap", "x", "--out", "y", "--rate", "nan"), "a number above 0, not nan"),
    ],
)
def test_a_refusal_says_why(options, reason):
    done = gpuring(*options)
    assert done.returncode != 0
    assert reason in done.stderr
