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


def between_one_and(most: int, value: Any, what: str) -> int:
    """The same; raises ValueError, too, if it is not 1 … `most`."""
    checked = integer(value, what)
    if not 1 <= checked <= most:
        raise ValueError(f"{what} is 1 … {most}, not {checked}")
    return checked
