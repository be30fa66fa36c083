"""Whether anybody still has an object.

A Ctrl-C may come when a verb is done and before its caller has the result.  Then only this package
refers to the result.  The same is true for a result that was dropped.

How many references a call adds to its argument differs between versions of Python: the caller's
stack keeps one, gives it to the function, or has only borrowed it.  So the number is measured here,
by calls of the same form.
"""

from __future__ import annotations

import sys
from typing import Any


def _count(thing: object) -> int:
    return sys.getrefcount(thing)


def _of_a_variable() -> int:
    thing = object()
    return _count(thing)


_OURS = _of_a_variable()  # the reference of that variable, and those of the look itself


def references(thing: object) -> int:
    """How many references there are beside the caller's variable.

    If the caller has got the object as an argument, another variable has it, too.  Then use
    nobody_has.
    """
    return sys.getrefcount(thing) - _OURS


def _of_an_argument(thing: object) -> int:
    return references(thing)


def _of_a_callers_variable() -> int:
    thing = object()
    return _of_an_argument(thing)


_CALLERS = _of_a_callers_variable()  # those of the caller's variable and of passing it here


def nobody_has(slot: Any, known: int = 0) -> bool:
    """Whether nobody refers to a slot of an endpoint, to its arrays or to its metadata.

    `known` is how many references are expected beside those of the endpoint and of the caller's
    variable.
    """
    if references(slot) != 1 + known + _CALLERS:  # the endpoint's list, and that variable
        return False
    meta = slot._meta
    if meta is not None and references(meta) != 1:
        return False
    return all(references(view) == 1 + (slot._whole is view) for view in slot._views.values())
