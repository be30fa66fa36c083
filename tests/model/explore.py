"""The explorer: every interleaving of a few actors on a flat memory, with SIGKILL before any step.

A state is one flat tuple of integers: the memory, then the number of each actor's local state.
Breadth first, so a counterexample is a shortest one.  Three reductions, all exact:

* Local computation costs no step (a verb yields shared accesses only).
* A load of a word that no *other* actor ever writes commutes with everything, so it follows the
  step before it at once.  Which words these are is found out, not declared: as soon as somebody
  else writes one, the exploration starts again with that word shared.
* SIGKILL is tried right after each write of the victim, and after each look of somebody else at a
  kernel lock (death drops those).  A kill further on, after nothing but loads of the victim and
  steps that cannot see it, leaves what the earlier kill followed by the same steps leaves.

`reduce=False` goes without the last two; `test_model.py` compares.
"""

import itertools
import random
import time
from dataclasses import dataclass, field

from .program import Program
from .steps import BOTH, CAS, DEAD, DONE, FAIL, LOAD, WAIT, apply, effect

KINDS = (
    *("load", "store", "cas", "add", "or", "clear", "lock"),
    *("load both", "load all", "enqueue", "wait"),
)


@dataclass
class World:
    memory: tuple
    names: list  # of the words
    actors: list
    kills: int = 0
    kernel_locks: frozenset = frozenset()  # addresses that fall back to 0 when their holder dies
    legal: object = None  # (address, old, new) -> complaint or None
    safe: object = None  # (memory, [me of each actor, None when dead]) -> complaint or None
    note: object = None  # (memory as a list, operation, old, new): keep ghost words up to date
    show: object = staticmethod(lambda name, value: str(value))
    limit: int = 20_000_000

    def without(self, memory, tag):
        """The kernel drops the locks of process `tag`, in a list."""
        for a in self.kernel_locks:
            if memory[a] == tag:
                memory[a] = 0


@dataclass
class Report:
    states: int = 0
    seconds: float = 0.0
    violation: str = ""
    trace: tuple = ()
    ends: set = field(default_factory=set)  # the memories where everybody had finished

    def head(self):
        return f"{self.states:>9,} states {self.seconds:6.1f} s  {self.violation or 'clean'}"

    def __str__(self):
        return "\n".join([self.head(), *self.trace])


def explore(world, *, reduce=True):
    """Visit every reachable state.  -> Report, with a shortest trace when something is wrong."""
    began = time.perf_counter()
    programs = [Program(a) for a in world.actors]
    shared = set(world.kernel_locks)
    if reduce:
        _rehearse(world, programs, shared)
    else:
        shared.update(range(len(world.memory)))
    while True:
        try:
            report = _Search(world, programs, shared, reduce).run()
            break
        except _Shared as found:
            shared.add(found.args[0])
    report.seconds = time.perf_counter() - began
    return report


class _Shared(Exception):
    """Another actor writes an address that was taken for private."""


class _Wrong(Exception):
    """(complaint, state, last line of the trace)"""


class _Search:
    def __init__(self, world, programs, shared, reduce):
        self.world, self.programs, self.shared, self.reduce = world, programs, shared, reduce
        self.n = len(world.memory)
        self.parent, self.queue = {}, []
        self.right = set()  # the (memory, books) known to be right
        self.quiet = [set() for _ in programs]  # addresses whose loads were merged, per actor
        self.writes = [set() for _ in programs]  # addresses written, per actor
        self.report = Report()
        self.tags = [actor.me.tag for actor in world.actors]
        self.mortal = [k for k, actor in enumerate(world.actors) if actor.mortal]

    def run(self):
        first = list(self.world.memory) + [p.first for p in self.programs]
        for k in range(len(self.programs)):
            first[self.n + k] = self._follow(k, first[self.n + k], first)
        try:
            self._arrive(tuple(first), None)
            self._kills(first, None, None)
            for state in self.queue:
                self._leave(state)
                if len(self.parent) > self.world.limit:
                    raise _Wrong(f"more than {self.world.limit:,} states", state)
        except _Wrong as wrong:
            complaint, state, *last = wrong.args
            self.report.violation = complaint
            self.report.trace = (*self._trace(state), *last)
        self.report.states = len(self.parent)
        return self.report

    def _leave(self, state):
        """Take every step out of `state`."""
        n, world = self.n, self.world
        stuck, awake = True, []
        for k, program in enumerate(self.programs):
            j = state[n + k]
            op = program.ops[j]
            if op[0] >= DONE:
                continue
            if op[0] == LOAD:  # most are, and `effect` says the same
                enabled, result, new = True, state[op[1]], None
            else:
                enabled, result, new = effect(state, op)
            if not enabled:
                continue
            if op[0] == WAIT:
                awake.append(k)
            else:
                stuck = False
            after = list(state)
            if new is not None:
                self._write(k, op, state, after, new)
            following = program.edges[j].get(result)
            if following is None:
                following = program.step(j, result)
            after[n + k] = following
            if world.kills:
                if new is not None:
                    self._kills(after, state, k)
                elif op[0] == BOTH or (op[0] in (LOAD, CAS) and op[1] in world.kernel_locks):
                    self._kills(after, state, None)
            after[n + k] = self._follow(k, following, after)
            self._arrive(tuple(after), state)
        if world.kills and not self.reduce:
            self._kills(list(state), state, None)
        if stuck and all(_spins(self.programs[k], state[n + k], state) for k in awake):
            self._end(state)

    def _write(self, k, op, state, after, new):
        a = op[1]
        if a not in self.writes[k]:
            self.writes[k].add(a)
            if a not in self.shared and any(a in q for x, q in enumerate(self.quiet) if x != k):
                raise _Shared(a)
        wrong = self.world.legal and self.world.legal(a, state[a], new)
        if wrong:
            raise _Wrong(wrong, state, self._line(k, op, state, new))
        after[a] = new
        if self.world.note:
            self.world.note(after, op, state[a], new)

    def _follow(self, k, j, memory):
        """Take actor k's loads of private words at once.  -> its local state after them."""
        program = self.programs[k]
        op = program.ops[j]
        while op[0] == LOAD and op[1] not in self.shared:
            if op[1] not in self.quiet[k]:
                self.quiet[k].add(op[1])
                if any(op[1] in w for x, w in enumerate(self.writes) if x != k):
                    raise _Shared(op[1])
            j = program.step(j, memory[op[1]])
            op = program.ops[j]
        return j

    def _kills(self, state, source, writer):
        """Let actor `writer` die in `state` (a list), or each of the mortal when it is None."""
        victims = [
            k for k in (self.mortal if writer is None else (writer,))
            if k in self.mortal and self._op(k, state)[0] < DONE
        ]  # fmt: skip
        if not victims:
            return
        everybody, tags = range(len(self.programs)), self.tags
        dead = {tags[k] for k in everybody if self._op(k, state)[0] == DEAD}
        if len(dead) >= self.world.kills:
            return
        for k in victims:
            after = list(state)
            self.world.without(after, tags[k])
            for thread in everybody:  # all of its process
                if tags[thread] == tags[k]:
                    after[self.n + thread] = self.programs[thread].bury()
            for other in everybody:
                after[self.n + other] = self._follow(other, after[self.n + other], after)
            self._arrive(tuple(after), source)

    def _op(self, k, state):
        return self.programs[k].ops[state[self.n + k]]

    def _arrive(self, state, source):
        if state in self.parent:
            return
        self.parent[state] = source
        self.queue.append(state)
        n, world = self.n, self.world
        locals_ = state[n:]
        key = state[:n], *[p.book[j] for p, j in zip(self.programs, locals_, strict=True)]
        if key in self.right:
            return
        self.right.add(key)
        for actor, program, j in zip(world.actors, self.programs, locals_, strict=True):
            if program.ops[j][0] == FAIL:
                raise _Wrong(f"{actor.name} failed: {program.ops[j][1]}", state)
        wrong = world.safe and world.safe(
            state, [p.me[j] for p, j in zip(self.programs, locals_, strict=True)]
        )
        if wrong:
            raise _Wrong(wrong, state)

    def _end(self, state):
        """Checks a state in which nobody can take a step: everybody must have finished."""
        self.report.ends.add(state[: self.n])
        for actor, program, j in zip(
            self.world.actors, self.programs, state[self.n :], strict=True
        ):
            if program.ops[j][0] < DONE and not actor.daemon:
                raise _Wrong(f"{actor.name} waits for ever", state)

    # ------------------------------------------------------------------ telling what happened

    def _trace(self, state):
        path = [state]
        while self.parent[path[-1]] is not None:
            path.append(self.parent[path[-1]])
        path.reverse()
        return [self._between(x, y) for x, y in itertools.pairwise(path)]

    def _between(self, x, y):
        """Which step led from x to y?"""
        n = self.n
        moved = [k for k in range(len(self.programs)) if x[n + k] != y[n + k]]
        changed = [a for a in range(n) if x[a] != y[a]]
        text = []
        for k, program in enumerate(self.programs):
            op = program.ops[x[n + k]]
            enabled, _, new = effect(x, op) if op[0] < DONE else (False, None, None)
            died = program.ops[y[n + k]][0] == DEAD and k in moved
            own = new is not None and y[op[1]] == new and op[1] in changed
            if enabled and (own or (k in moved and not died and new is None)):
                text.append(self._line(k, op, x, new))
            if died:
                text.append(f"{self.world.actors[k].name}: SIGKILL")
        return ", ".join(text) or "?"

    def _line(self, k, op, state, new):
        kind, a, world = op[0], op[1], self.world
        name = f"{world.actors[k].name}: {KINDS[kind]}"
        if kind == WAIT:
            return f"{name} over: " + ", ".join(world.names[b] for b, v in a if state[b] != v)
        before = world.show(world.names[a], state[a])
        if new is not None:
            return f"{name} {world.names[a]} {before} -> {world.show(world.names[a], new)}"
        if kind == CAS and state[a] != op[2]:
            return f"{name} {world.names[a]} fails, it is {before}"
        return f"{name} {world.names[a]} = {before}"


def _spins(program, j, memory):
    """Does this actor, alone, look again for ever without changing a word?"""
    been = set()
    while j not in been:
        been.add(j)
        enabled, result, new = effect(memory, program.ops[j])
        if not enabled or new is not None:
            return False
        j = program.step(j, result)
        if program.ops[j][0] >= DONE:
            return False
    return True


def _rehearse(world, programs, shared):
    """Random walks that find most of the shared words, so that the search seldom has to start
    anew."""
    dice = random.Random(1)
    loads, writes = [set() for _ in programs], [set() for _ in programs]
    for _ in range(40):
        memory, at, kills = list(world.memory), [p.first for p in programs], world.kills
        running = set(range(len(programs)))
        while running:
            k = dice.choice(sorted(running))
            program, op = programs[k], programs[k].ops[at[k]]
            enabled, _, new = effect(memory, op) if op[0] < DONE else (False, None, None)
            if not enabled:
                running.discard(k)
                continue
            if op[0] == LOAD:
                loads[k].add(op[1])
            at[k] = program.step(at[k], apply(memory, op)[1])
            if new is not None:
                writes[k].add(op[1])
                running = set(range(len(programs)))
                if world.actors[k].mortal and kills and dice.random() < 0.05:
                    kills -= 1
                    tag = world.actors[k].me.tag
                    for thread, actor in enumerate(world.actors):
                        if actor.me.tag == tag:
                            at[thread] = programs[thread].bury()
                    world.without(memory, tag)
    for k, used in enumerate(loads):
        for other, written in enumerate(writes):
            if k != other:
                shared |= used & written
