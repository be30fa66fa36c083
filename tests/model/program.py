"""An actor, and its local states: its program as the explorer sees it."""

import copy
from dataclasses import dataclass, is_dataclass

from .steps import DEAD, DONE, FAIL


@dataclass(frozen=True)
class Actor:
    """`script(me)` is a generator; `me` is copied for each replay, so scripts may change it.

    Actors whose `me` have one tag are threads of one process: SIGKILL takes all of them.
    """

    name: str
    script: object
    me: object
    mortal: bool = False
    daemon: bool = False  # need not finish (a watchdog)


class Program:
    """The local states of one actor, found by replaying its generator.

    Where the generator (and those it delegates to) is paused, together with its locals, determines
    all that it can do next; two histories that end alike are one local state.
    """

    def __init__(self, actor):
        self.actor = actor
        self.ops, self.edges, self.me, self.history = [], [], [], []
        self.book = []  # per local state: the number of its `me`
        self._index, self._books = {}, {}
        self.first = self._enter(())

    def step(self, j, result):
        """The local state after state j's operation returned `result`."""
        following = self.edges[j].get(result)
        if following is None:
            following = self.edges[j][result] = self._enter((*self.history[j], result))
        return following

    def bury(self):
        return self._number((DEAD,), (DEAD,), None, ())

    def _enter(self, history):
        me = copy.copy(self.actor.me)
        paused = self.actor.script(me)
        try:
            op = paused.send(None)
            for result in history:
                op = paused.send(result)
        except StopIteration:
            op = (DONE,)
        except Exception as error:
            op = (FAIL, f"{type(error).__name__} {error}".strip())
        return self._number((op, _frames(paused), _freeze(me)), op, me, history)

    def _number(self, key, op, me, history):
        j = self._index.setdefault(key, len(self.ops))
        if j == len(self.ops):
            book = _freeze(me), op[0] == FAIL and op[1]
            self.book.append(self._books.setdefault(book, len(self._books)))
            self.ops.append(op)
            self.edges.append({})
            self.me.append(me)
            self.history.append(history)
        return j


def _frames(paused):
    stack = []
    while paused is not None and getattr(paused, "gi_frame", None) is not None:
        frame = paused.gi_frame
        variables = dict(frame.f_locals)
        values = tuple((name, _freeze(variables[name])) for name in sorted(variables))
        stack.append((frame.f_code, frame.f_lasti, values))
        paused = paused.gi_yieldfrom
    return tuple(stack)


def _freeze(value):
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(vars(value).values())
    hash(value)  # what cannot be hashed cannot be told apart
    return value
