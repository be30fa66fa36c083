"""The explorer: every interleaving of a few actors over a flat memory, with SIGKILL before any step.

A state is one flat tuple of integers: the memory, then for each actor the number of its local state.
Breadth first, so a counterexample is a shortest one.  Three reductions, all exact:

* Local computation costs no step (a verb yields shared accesses only).
* A load of a word that no *other* actor ever writes commutes with everything, so it follows the step
  before it at once.  Which words these are is found out, not declared: as soon as somebody else writes
  one, the exploration starts again with that word shared.
* SIGKILL is tried right after each write of the victim (and at the start).  A kill further on, after
  loads only, leaves the same memory and the same dead actor, and others could have run in between.
"""

import copy
import dataclasses
import time

from .steps import ADD, BOTH, CAS, CLEAR, DEAD, DONE, FAIL, LOAD, LOCK, OR, STORE, WAIT

KINDS = "load store cas add or clear lock load_both wait done FAILED dead".split()
WRITES = (STORE, CAS, ADD, OR, CLEAR, LOCK)


@dataclasses.dataclass(frozen=True)
class Actor:
    """`script(me)` is a generator; `me` is copied for each replay, so scripts may change it."""

    name: str
    script: object
    me: object
    mortal: bool = False
    daemon: bool = False  # need not finish (a watchdog)


@dataclasses.dataclass
class World:
    memory: tuple
    names: list  # of the words
    actors: list
    kills: int = 0
    kernel_locks: frozenset = frozenset()  # addresses that fall back to 0 when their holder dies
    legal: object = None  # (actor, address, old, new) -> complaint or None
    safe: object = None  # (memory, [me of each actor, None when dead]) -> complaint or None
    final: object = None  # (memory, [me of each actor], {indices of the dead}) -> complaint or None
    show: object = staticmethod(lambda name, value: str(value))
    limit: int = 5_000_000


@dataclasses.dataclass
class Report:
    states: int
    seconds: float
    violation: str = ""
    trace: tuple = ()

    def __str__(self):
        text = f"{self.states:>9,} states {self.seconds:6.1f} s  {self.violation or 'clean'}"
        return "\n".join([text, *self.trace])


class Program:
    """The local states of one actor, found by replaying its generator.

    Where the generator (and those it delegates to) is paused, together with its locals, determines all
    that it can do next; two histories that end alike are one local state.
    """

    def __init__(self, actor):
        self.actor = actor
        self.ops, self.edges, self.me, self.history = [], [], [], []
        self._index = {}
        self.first = self._enter(())

    def step(self, j, result):
        """The local state after state j's operation returned `result`."""
        following = self.edges[j].get(result)
        if following is None:
            following = self.edges[j][result] = self._enter((*self.history[j], result))
        return following

    def bury(self, j):
        """The dead local state that keeps j's books."""
        return self._number(((DEAD,), _freeze(self.me[j])), (DEAD,), self.me[j], ())

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
            self.ops.append(op)
            self.edges.append({})
            self.me.append(me)
            self.history.append(history)
        return j


def _frames(paused):
    stack = []
    while paused is not None and getattr(paused, "gi_frame", None) is not None:
        frame = paused.gi_frame
        names = sorted(frame.f_locals)
        values = tuple(_freeze(frame.f_locals[n]) for n in names)
        stack.append((frame.f_code, frame.f_lasti, tuple(names), values))
        paused = paused.gi_yieldfrom
    return tuple(stack)


def _freeze(value):
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(vars(value).values())
    hash(value)
    return value


class _Shared(Exception):
    """An address that was taken for private turned out to be written by another actor."""


def explore(world):
    """Visit every reachable state.  -> Report, with a shortest trace when something is wrong."""
    began, shared = time.perf_counter(), set(world.kernel_locks)
    programs = [Program(a) for a in world.actors]
    while True:
        try:
            report = _breadth_first(world, programs, shared)
            break
        except _Shared as found:
            shared.add(found.args[0])
    report.seconds = time.perf_counter() - began
    return report


def _breadth_first(world, programs, shared):
    n, actors = len(world.memory), range(len(programs))
    quietly = [set() for _ in actors]  # addresses whose loads were merged, per actor
    writers = [set() for _ in actors]  # addresses written, per actor
    parent, queue = {}, []

    def follow(k, j, memory):
        """Take actor k's loads of private words at once."""
        program = programs[k]
        op = program.ops[j]
        while op[0] == LOAD and op[1] not in shared:
            if op[1] not in quietly[k]:
                quietly[k].add(op[1])
                for other in actors:
                    if other != k and op[1] in writers[other]:
                        raise _Shared(op[1])
            j = program.step(j, memory[op[1]])
            op = program.ops[j]
        return j

    def written(k, a):
        writers[k].add(a)
        if a not in shared:
            for other in actors:
                if other != k and a in quietly[other]:
                    raise _Shared(a)

    def arrive(state, source):
        if state in parent:
            return None
        parent[state] = source
        queue.append(state)
        return _complaint(world, programs, state, n)

    def dead(state):
        return [k for k in actors if programs[k].ops[state[n + k]][0] == DEAD]

    def kill(state, k, source):
        """Actor k dies in `state`; the kernel drops its locks."""
        if not world.actors[k].mortal or len(dead(state)) >= world.kills:
            return None
        after, tag = list(state), world.actors[k].me.tag
        for a in world.kernel_locks:
            if after[a] == tag:
                after[a] = 0
        after[n + k] = programs[k].bury(state[n + k])
        return arrive(tuple(after), source)

    def report(complaint, state, last=None):
        trace = _trace(world, programs, parent, state, n) + ((last,) if last else ())
        return Report(len(parent), 0, complaint, trace)

    first = (*world.memory, *(follow(k, programs[k].first, world.memory) for k in actors))
    arrive(first, None)
    for k in actors:
        kill(first, k, first)

    for state in queue:
        stuck = True
        for k in actors:
            j = state[n + k]
            op = programs[k].ops[j]
            kind = op[0]
            if kind >= DONE:
                continue
            a, after, result = op[1], None, None
            if kind == LOAD:
                result = state[a]
            elif kind == WAIT:
                for b, v in a:
                    if state[b] != v:
                        break
                else:
                    continue
            elif kind == BOTH:
                result = state[a], state[op[2]]
            else:
                old = state[a]
                if kind == CAS:
                    result = old == op[2]
                    new = op[3] if result else old
                elif kind == STORE:
                    new = op[2]
                elif kind == LOCK:
                    if old:
                        continue
                    new = op[2]
                else:
                    result = old
                    new = old + op[2] if kind == ADD else old | op[2] if kind == OR else old & ~op[2]
                if new != old:
                    if a not in writers[k]:
                        written(k, a)
                    wrong = world.legal and world.legal(k, a, old, new)
                    if wrong:
                        return report(wrong, state, _line(world, k, op, state, new))
                    after = list(state)
                    after[a] = new
            stuck = False
            following = programs[k].edges[j].get(result)
            if following is None:
                following = programs[k].step(j, result)
            wrote = after is not None
            after = after or list(state)
            after[n + k] = following
            if wrote and world.actors[k].mortal:
                wrong = kill(after, k, state)
                if wrong:
                    return report(wrong, queue[-1])
            after[n + k] = follow(k, following, after)
            after = tuple(after)
            wrong = arrive(after, state)
            if wrong:
                return report(wrong, after)
        if stuck:
            wrong = _stuck(world, programs, state, n, dead(state))
            if wrong:
                return report(wrong, state)
        if len(parent) > world.limit:
            return report(f"more than {world.limit:,} states", state)
    return Report(len(parent), 0)


def _complaint(world, programs, state, n):
    """What is wrong with this state, if anything."""
    books = []
    for k, program in enumerate(programs):
        j = state[n + k]
        op = program.ops[j]
        if op[0] == FAIL:
            return f"{world.actors[k].name} failed: {op[1]}"
        books.append(None if op[0] == DEAD else program.me[j])
    return world.safe and world.safe(state, books)


def _stuck(world, programs, state, n, dead):
    """Nobody can take a step: everybody must have finished, and the books must balance."""
    for k, program in enumerate(programs):
        if program.ops[state[n + k]][0] < DONE and not world.actors[k].daemon:
            return f"{world.actors[k].name} waits for ever"
    return world.final and world.final(state, [p.me[state[n + k]] for k, p in enumerate(programs)], dead)


# ---------------------------------------------------------------------- telling what happened


def _trace(world, programs, parent, state, n):
    path = [state]
    while parent[path[-1]] is not None and parent[path[-1]] != path[-1]:
        path.append(parent[path[-1]])
    path.reverse()
    return tuple(_between(world, programs, x, y, n) for x, y in zip(path, path[1:]))


def _between(world, programs, x, y, n):
    """Which step led from x to y?"""
    for k, program in enumerate(programs):
        name, op = world.actors[k].name, program.ops[x[n + k]]
        if program.ops[y[n + k]][0] == DEAD and op[0] != DEAD:
            changed = [a for a in range(n) if x[a] != y[a] and a not in world.kernel_locks]
            last = _line(world, k, op, x, y[changed[0]]) + ", then " if changed else ""
            return f"{last or name + ': '}SIGKILL"
        if y[n + k] != x[n + k]:
            written = y[op[1]] if op[0] in WRITES else None
            return _line(world, k, op, x, written)
        if op[0] in WRITES and y[op[1]] != x[op[1]]:
            return _line(world, k, op, x, y[op[1]])
    return "?"


def _line(world, k, op, state, new):
    kind, a = op[0], op[1]
    name = f"{world.actors[k].name}: {KINDS[kind]}"
    if kind == WAIT:
        return f"{name} over: " + ", ".join(
            world.names[b] for b, v in a if state[b] != v
        )
    before = world.show(world.names[a], state[a])
    if kind in WRITES:
        if kind == CAS and state[a] != op[2]:
            return f"{name} {world.names[a]} fails, it is {before}"
        return f"{name} {world.names[a]} {before} -> {world.show(world.names[a], new)}"
    return f"{name} {world.names[a]} = {before}"
