"""Whether anybody has something still.

A Ctrl-C may come when a verb is done and before its caller has what it returns.  Then nobody refers
to that any more, except for our own books; so does nobody to what was dropped.
"""

from __future__ import annotations

import sys
from typing import Any


def _count(thing: object) -> int:
    return sys.getrefcount(thing)


def _count_of_a_new_one(thing: object) -> int:
    return _count(thing)


_OURS = _count_of_a_new_one(object())  # that of the caller's variable, and of the look itself


def references(thing: object) -> int:
    """To what a variable of the caller has, beside that variable."""
    return sys.getrefcount(thing) - _OURS


def nobody_has(slot: Any, known: int = 0) -> bool:
    """Whether nobody refers to a slot of an endpoint, nor to its arrays and its metadata, but for
    `known` references beside the endpoint's own and the caller's variable."""
    if references(slot) != 2 + known:  # the endpoint's list, and that variable
        return False
    meta = slot._meta
    if meta is not None and references(meta) != 1:
        return False
    return all(references(view) == 1 + (slot._whole is view) for view in slot._views.values())
