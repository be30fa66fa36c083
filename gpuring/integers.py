"""What counts as an integer in an argument: whatever Python takes as an index, except a bool."""

from __future__ import annotations

import operator
import reprlib
from typing import Any


def integer(value: Any, what: str, kind: str = "an int") -> int:
    """`value` as an int.  It may be NumPy's.  `what` and `kind` are for the TypeError."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{what} is {kind}, not {reprlib.repr(value)}")


def between_one_and(most: int, value: Any, what: str) -> int:
    """`value` as an int from 1 to `most`.  Raises TypeError, ValueError."""
    checked = integer(value, what)
    if not 1 <= checked <= most:
        raise ValueError(f"{what} is 1 … {most}, not {checked}")
    return checked
