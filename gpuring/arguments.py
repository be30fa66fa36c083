"""What counts as a number, an integer, seconds, or yes or no in an argument.  A str never does.

An integer is whatever Python takes as an index, except a bool.
"""

from __future__ import annotations

import math
import operator
import reprlib
from numbers import Real
from typing import Any

import numpy as np


class Octal(int):
    """An int that is shown as 0o600, also by help()."""

    def __repr__(self) -> str:
        return oct(self)


def number(value: Any, what: str, kind: str = "a number") -> float:
    """`value` as a float.  It may be NumPy's.  `what` and `kind` are for the TypeError."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{what} must be {kind}, not {reprlib.repr(value)}")
    try:
        return float(value)
    except OverflowError:  # an int
        return -math.inf if value < 0 else math.inf


def seconds(value: Any, what: str) -> float:
    """A time that a call may take.  None is for ever: math.inf.  Raises TypeError, ValueError."""
    if value is None:
        return math.inf
    checked = number(value, what, "a number of seconds or None")
    if not checked >= 0:
        raise ValueError(f"{what} must be a number of seconds >= 0 or None, not {value!r}")
    return checked


def seconds_from(least: float, value: Any, what: str) -> float:
    """A time from `least` seconds to 1e9.  Raises TypeError, ValueError."""
    checked = seconds(value, what)
    if not least <= checked <= 1e9:
        raise ValueError(f"{what} must be a number of seconds from {least:g} to 1e9, not {value}")
    return checked


def flag(value: Any, what: str, kind: str = "True or False") -> bool:
    """`value` as a bool.  Raises TypeError for everything that is merely true or false."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{what} must be {kind}, not {reprlib.repr(value)}")
    return bool(value)


def integer(value: Any, what: str, kind: str = "an int") -> int:
    """`value` as an int.  It may be NumPy's.  `what` and `kind` are for the TypeError."""
    if not isinstance(value, bool | np.bool_):  # NumPy before 2.3 takes its own for numbers
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{what} must be {kind}, not {reprlib.repr(value)}")


def between_one_and(most: int, value: Any, what: str) -> int:
    """`value` as an int from 1 to `most`.  Raises TypeError, ValueError."""
    checked = integer(value, what)
    if not 1 <= checked <= most:
        raise ValueError(f"{what} must be 1 … {most}, not {checked}")
    return checked


def permissions(value: Any, what: str) -> int:
    """`value` as the permission bits of a file.  Raises TypeError, ValueError."""
    checked = integer(value, what)
    if not 0 <= checked <= 0o777:
        raise ValueError(f"{what} must be permission bits such as 0o600, not {checked!r}")
    return checked
