"""Names under SIGKILL, at every line of Python that has to do with them.  What happens between the
steps of the C library is in native/api/test_taking.py."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gpuring
from tests.helpers.interrupted import collected
from tests.helpers.processes import Pipe
from tests.helpers.rings import is_whole_or_gone, segments_of, tidied
from tests.registry import in_a_child

PACKAGE = Path(gpuring.__file__).parent
CHANGES_NAMES = {
    str(PACKAGE / file)
    for file in (
        "ring/creation.py",
        "ring/ring.py",
        "registry/segment.py",
        "memory/host.py",
    )
}
OPTIONS: dict[str, Any] = {"slots": 2, "shape": 4, "dtype": "u1", "device": "host"}

Op = Callable[[str], Any]


class At:
    """Calls a function at the k-th line (or return) of the code that changes names, during a
    block."""

    def __init__(self, k: int, call: Callable[[], None]) -> None:
        self._left, self._do = k, call
        self._trace = self._call
        """Kept: CPython calls it once more after `settrace(None)` has dropped it."""
        self.where = ""
        """The line; empty: there were fewer."""

    def _call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        counts = frame.f_code.co_filename in CHANGES_NAMES and not collected(frame)
        return self._line if counts else None

    def _line(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            sys.settrace(None)
            self._do()
            sys.settrace(self._trace)
        return self._line

    def __enter__(self) -> At:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


def created(name: str) -> gpuring.Ring:
    return gpuring.create(name, **OPTIONS)


def replaced(name: str) -> gpuring.Ring:
    return gpuring.create(name, **OPTIONS, replace=True)


# ---- a kill ------------------------------------------------------------------------------------


def killed_in(op: Op, name: str, k: int, told: int) -> object:
    with At(k, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        kept = op(name)
    os.write(told, b"x")  # there were fewer lines
    return kept


def nothing(_name: str) -> None:
    pass


def dead_ring(name: str) -> None:
    in_a_child(lambda: created(name))


KILLED: dict[str, tuple[Callable[[str], Any], Op]] = {
    "create": (nothing, created),
    "replace a living ring": (created, replaced),
    "replace a dead ring": (dead_ring, replaced),
    "close": (nothing, lambda name: created(name).close()),
}


def kills(_pipe: Pipe, name: str, what: str) -> int:
    """Kills `what` at each line of it, and looks what is left; how many lines there were.

    In a process of its own, which has no other thread when it forks.
    """
    prepare, op = KILLED[what]
    for k in range(1, 10_000):
        mine = prepare(name)
        reading, told = os.pipe()
        in_a_child(lambda k=k, told=told: killed_in(op, name, k, told))
        os.close(told)
        over = os.read(reading, 1)
        os.close(reading)
        is_whole_or_gone(name)
        if k % 2:
            replaced(name).close()  # a new start works at once, whatever is left
        if mine is not None:
            mine.close()
        tidied(name)
        assert segments_of(name) == [], f"{what}, killed at line {k}"
        if over:
            return k
    raise AssertionError("the lines do not end")


@pytest.mark.slow
@pytest.mark.deadline(300)
@pytest.mark.parametrize("what", KILLED)
def test_a_kill_at_any_line_leaves_a_whole_ring_or_what_the_next_tidying_takes(
    name, children, what
):
    child = children(kills, name, what)
    child.patience_s = 280
    assert child.result() > 20
