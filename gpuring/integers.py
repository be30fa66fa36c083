"""What counts as an integer in an argument: whatever Python takes as an index, but no bool."""

from __future__ import annotations

import operator
from typing import Any


def integer(value: Any, what: str) -> int:
    """`value` as an int, also if it is NumPy's; `what` names it in the TypeError."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{what} is an int, not {type(value).__name__}")
