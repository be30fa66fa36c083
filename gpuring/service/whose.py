"""Whether anybody has something still.

A Ctrl-C may come when a verb is done and before its caller has what it returns.  Then nobody refers
to that any more, except for our own books; so does nobody to what was dropped.

What a call of Python's adds to the references of an argument differs from version to version (the
caller's stack keeps one, or hands it over, or has only borrowed it).  So it is measured, by calls
of the same form.
"""

from __future__ import annotations

import sys
from typing import Any


def _count(thing: object) -> int:
    return sys.getrefcount(thing)


def _of_a_variable() -> int:
    thing = object()
    return _count(thing)


_OURS = _of_a_variable()  # that variable's, and those of the look itself


def references(thing: object) -> int:
    """How many there are beside the caller's variable.  Of what has been given to the caller as an
    argument, so that somebody else's variable has it too, ask nobody_has."""
    return sys.getrefcount(thing) - _OURS


def _of_an_argument(thing: object) -> int:
    return references(thing)


def _of_a_callers_variable() -> int:
    thing = object()
    return _of_an_argument(thing)


_CALLERS = _of_a_callers_variable()  # what the variable of our caller is, and its way to us


def nobody_has(slot: Any, known: int = 0) -> bool:
    """Whether nobody refers to a slot of an endpoint, nor to its arrays and its metadata, but for
    `known` references beside the endpoint's own and the caller's variable."""
    if references(slot) != 1 + known + _CALLERS:  # the endpoint's list, and that variable
        return False
    meta = slot._meta
    if meta is not None and references(meta) != 1:
        return False
    return all(references(view) == 1 + (slot._whole is view) for view in slot._views.values())
