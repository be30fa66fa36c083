"""What each worker is at, in memory that the main process still has when the worker was killed.

A worker notes which task it takes from its queue, and which sample of the task it loads.  The list
of a task's samples notes the latter, because torch's worker iterates over it.  A dataset with
`__getitems__` may use the list in any way, so it gets an ordinary list.
"""

from __future__ import annotations

import contextlib
from array import array
from multiprocessing.sharedctypes import RawArray
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TASK, _FIRST, _NOW, _PHASE, _WORDS = range(5)
"""The words of a worker: the number of its task, that of the task's first sample and that of the
sample that it is at, counted over its tasks of this epoch, and a phase."""

LOADS, COLLATES, DONE = range(3)

_mine = memoryview(array("q", [-1, 0, -1, DONE]))
"""The words of the worker that this process is."""


def _join() -> None:
    """Joins this worker's ring.  Other processes have none."""


class _Samples(list[Any]):
    """The samples of a task.  To iterate over them notes which one is loaded."""

    def __iter__(self) -> Iterator[Any]:
        words = _mine
        for words[_NOW], sample in enumerate(super().__iter__(), words[_FIRST]):  # noqa: B020
            yield sample


class Task:
    """What the main process puts into the queue of a worker.  When the worker takes it out, it is
    what the sampler gave, and the worker has begun with it."""

    def __init__(self, number: int, asked: Any, *, one_by_one: bool) -> None:
        """`one_by_one`: it is a list of samples, and the worker goes over it."""
        self._number, self._asked, self._one_by_one = number, asked, one_by_one

    @property
    def is_simple(self) -> bool:
        """Whether any pickler will do: nothing in it has a reducer of multiprocessing's."""
        return type(self._asked) is list and {*map(type, self._asked)} == {int}

    def __reduce__(self) -> tuple[Any, ...]:
        return _begin, (self._number, self._asked, self._one_by_one)


def _begin(number: int, asked: Any, one_by_one: bool) -> Any:
    first = _mine[_NOW] + 1 if number > _mine[_TASK] else 0  # 0: another epoch
    _mine[_TASK], _mine[_FIRST], _mine[_NOW], _mine[_PHASE] = number, first, first, LOADS
    with contextlib.suppress(OSError):  # if it comes again, it is an error of the batch
        _join()
    return _Samples(asked) if one_by_one else asked


def enter(phase: int) -> None:
    """This worker has all samples of its task (COLLATES), or has done it."""
    _mine[_PHASE] = phase


class Place(NamedTuple):
    """What a worker was at."""

    task: int
    before: int
    """How many samples it had loaded in this epoch, before those of the task."""
    step: int
    """… and so many of the task."""
    phase: int


class Progress:
    """The words of all workers."""

    def __init__(self, workers: int) -> None:
        self._words = RawArray("q", [*_mine] * workers)

    def _of(self, worker: int) -> memoryview:
        return memoryview(self._words).cast("B").cast("q")[_WORDS * worker :][:_WORDS]

    def start(self, worker: int, join: Callable[[], None]) -> None:
        """This process is that worker.  It calls `join` whenever it begins with a task."""
        global _mine, _join
        _mine, _join = self._of(worker), join

    def place(self, worker: int) -> Place:
        task, first, now, phase = self._of(worker)
        return Place(task, first, now - first, phase)
