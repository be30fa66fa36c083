"""Device order: what GPU streams may do to the frames.  The host verbs are those of `protocol.py`.

A verb is one step here (the host model shows that it may be seen as happening at its swap); what
it enqueues lands on a stream, a queue that the device runs later, in order, at any time.  A killed
process loses its locks at once; its streams run on until the instant "GPU gone", then the rest of
them vanishes.  The reaper takes its steps one by one, so streams run between a torn mark and the
raising of a fence.

A process without a GPU is on a pinned ring.  Its CPU does what a stream does for the others, and
the process goes on when its queue is empty.  So it promises nothing.  All of it is gone as soon as
it is killed.

An access at the head of its queue may be running.  These are violations: two accesses to one slot
at once, one of them a write (10); a reader that is told that its frame is whole when it is not, or
torn when its producer's GPU had finished it (11); a fence that falls or overtakes its promise (8);
a stream, or a process, that waits for ever.
"""

import time
from dataclasses import dataclass, replace

from .actors import reaping, run
from .explore import KINDS, Report
from .invariants import show
from .program import Actor, Program
from .steps import ENQUEUE, LOCK, WAIT, apply, effect
from .words import CONSUMER, NOBODY, EndOfStream, Peer, PeerLost, RingClosed, TableFull

ALIVE, DYING, GONE = "alive", "locks dropped", "gone"  # of a process


@dataclass(frozen=True)
class Process:
    """`script` is a row of "verb" or "verb/stream"; the names are the methods of `Device` below."""

    name: str
    script: tuple
    me: Peer
    mortal: bool = False


@dataclass(frozen=True)
class Life:
    """The changing part of a process."""

    status: str
    step: int
    me: tuple
    streams: tuple  # of queues; a queue is a tuple of (what, address or slot, value or sequence)
    read: tuple = ()  # of Read


@dataclass(frozen=True)
class Read:
    """A frame that was acquired: who published it, and whether its GPU finished."""

    seq: int
    producer: int
    producer_id: int
    value: int  # of the producer's fence
    finished: bool  # its producer's GPU got to the value, by itself
    whole: bool | None = None  # what the reading kernel found


class Blocked(Exception):
    pass


class Device:
    """One configuration: processes, one reaper, `kills` deaths."""

    def __init__(self, ring, kills=0):
        self.ring, self.kills = ring, kills
        self.memory, self.processes, self.victims = list(ring.initial), [], []

    # ------------------------------------------------------------------ casting

    def producer(self, script, *, cpu=False, **how):
        return self._add("P", Peer(tag=len(self.processes) + 1, cpu=cpu), script, **how)

    def consumer(self, script, *, u=0, lossy=False, cpu=False, **how):
        me = Peer(tag=len(self.processes) + 1, role=CONSUMER, u=u, lossy=lossy, cpu=cpu)
        return self._add("Y" if lossy else "L", me, script, **how)

    def _add(self, letter, me, script, *, at="next", late=False, mortal=False):
        if not late:
            run(self.memory, self.ring.join(me, at))
        name = f"{letter}{me.tag}"
        self.processes.append(Process(name, tuple(script.split()), me, mortal))
        return self

    # ------------------------------------------------------------------ verbs and user's kernels

    def join(self, me, put, memory):
        self._whole(memory, self.ring.join(me), put)

    def claim(self, me, put, memory):
        c = self._whole(memory, self.ring.claim(me), put)
        me.writing = (c,)
        put(("write", c % self.ring.slots, c))

    def publish(self, me, put, memory):
        self._whole(memory, self.ring.publish(me, me.writing[0]), put)
        me.writing = ()

    def abandon(self, me, put, memory):
        self._whole(memory, self.ring.abandon(me, me.writing[0]), put)
        me.writing = ()

    def acquire(self, me, put, memory):
        s = self._whole(memory, self.ring.acquire(me), put)
        me.holding += (s,)
        put(("read", s % self.ring.slots, s))

    def release(self, me, put, memory):
        self._whole(memory, self.ring.release(me, me.holding[0]), put)
        me.holding = me.holding[1:]

    def leave(self, me, put, memory):
        self._whole(memory, self.ring.leave(me), put)

    def _whole(self, memory, verb, put):
        """Run a verb in one step, putting what it enqueues on the stream.  Raises Blocked."""
        result = None
        try:
            while True:
                op = verb.send(result)
                enabled, result = apply(memory, op)
                if not enabled:
                    assert op[0] in (WAIT, LOCK)
                    raise Blocked
                if op[0] == ENQUEUE:
                    put(op[1])
        except StopIteration as stop:
            return stop.value

    # ------------------------------------------------------------------ exploring

    def explore(self):
        began = time.perf_counter()
        ring = self.ring
        watchdog = Actor("R", reaping(ring, range(ring.peers)), Peer(tag=99, role=NOBODY))
        self.reaper = Program(watchdog)
        lives = tuple(Life(ALIVE, 0, tuple(vars(p.me).values()), ((), ())) for p in self.processes)
        first = tuple(self.memory), (0,) * ring.slots, lives, self.reaper.first
        parent, queue = {first: (None, "")}, [first]
        for state in queue:
            moved = False
            for what, after in self._moves(state):
                moved = moved or not what.startswith("SIGKILL")
                wrong = after if isinstance(after, str) else None
                if wrong is None and after not in parent:
                    parent[after] = state, what
                    queue.append(after)
                    wrong = self._wrong(after)
                if wrong:
                    return self._report(wrong, parent, state, what, began)
            wrong = None if moved else self._unfinished(state)
            if wrong:
                return self._report(wrong, parent, state, "", began)
        return Report(len(parent), time.perf_counter() - began)

    def _moves(self, state):
        """-> (what happens, the state after it or a complaint)"""
        memory, content, lives, r = state
        dead = sum(life.status != ALIVE for life in lives)
        for k, (process, life) in enumerate(zip(self.processes, lives, strict=True)):
            if life.status == ALIVE:
                if life.step < len(process.script):
                    yield from self._verb(state, k)
                if process.mortal and dead < self.kills:
                    after = self._without(memory, process.me.tag, (*self.ring.byte, self.ring.lock))
                    killed = self._with(state, k, memory=after, status=DYING)
                    yield (
                        f"SIGKILL {process.name}",
                        self._gone(killed, k) if process.me.cpu else killed,
                    )
            elif life.status == DYING:
                yield f"{process.name}'s GPU work is gone", self._gone(state, k)
            for q, queue in enumerate(life.streams):
                if queue:
                    yield from self._device(state, k, q)
        op = self.reaper.ops[r]
        after = list(memory)
        enabled, result = apply(after, op)
        if enabled:
            r = self.reaper.step(r, result)
            yield f"R: {_told(self.ring, op, memory)}", (tuple(after), content, lives, r)

    def _gone(self, state, k):
        """Nothing runs any more for process k, which was killed."""
        after = self._without(state[0], self.processes[k].me.tag, self.ring.process)
        nothing = ((),) * len(state[2][k].streams)
        return self._with(state, k, memory=after, status=GONE, streams=nothing)

    def _verb(self, state, k):
        """The host side of process k takes its next verb."""
        process, life = self.processes[k], state[2][k]
        if process.me.cpu and any(life.streams):
            return
        name, _, stream = process.script[life.step].partition("/")
        q, me, memory = int(stream or 0), Peer(*life.me), list(state[0])
        queue = list(life.streams[q])
        step = life.step + 1

        def put(what):
            if what[0] != "wait" or not process.me.cpu or self.ring.fix("G14"):
                queue.append(what)

        try:
            getattr(self, name)(me, put, memory)
        except (Blocked, TableFull):  # try again later
            return
        except (RingClosed, EndOfStream, PeerLost):
            step = len(process.script)
        read = life.read
        if name == "acquire" and len(me.holding) > len(Peer(*life.me).holding):
            s, p = me.holding[-1], me.producer
            finished = memory[self.ring.paid[p][s % self.ring.slots]] >= me.value
            read += (Read(s, p, me.producer_id, me.value, finished),)
        streams = tuple(tuple(queue) if x == q else y for x, y in enumerate(life.streams))
        yield (
            f"{process.name}: {name} {(me.writing + me.holding) or ''}",
            self._with(
                state,
                k,
                memory=tuple(memory),
                step=step,
                me=tuple(vars(me).values()),
                streams=streams,
                read=read,
            ),
        )

    def _device(self, state, k, q):
        """The device runs the head of queue q of process k."""
        memory, content, lives, _ = state
        life, name = lives[k], self.processes[k].name
        (what, a, v), rest = life.streams[q][0], life.streams[q][1:]
        streams = tuple(rest if x == q else y for x, y in enumerate(life.streams))
        if what == "wait":
            if memory[a] >= v:
                yield (
                    f"{name}'s GPU: waited for {self.ring.names[a]}",
                    self._with(state, k, streams=streams),
                )
        elif what == "set":
            told = f"{name}'s GPU: {self.ring.names[a]} = {v >> 16}.{v & 0xFFFF}"
            if memory[a] > v:
                yield told, f"invariant 8: {self.ring.names[a]} falls from {memory[a] >> 16}"
            yield told, self._paid(self._with(state, k, streams=streams), a, v)
        elif what == "write":
            now = (*content[:a], v, *content[a + 1 :])
            yield f"{name}'s GPU: wrote {v}", self._with(state, k, content=now, streams=streams)
        else:
            whole = content[a] == v
            read = tuple(
                replace(r, whole=whole) if r.seq == v and r.whole is None else r for r in life.read
            )
            yield (
                f"{name}'s GPU: read {v}{'' if whole else ', GARBAGE'}",
                self._with(state, k, streams=streams, read=read),
            )

    def _paid(self, state, a, v):
        """A GPU has stored the value v in the fence at a, so the work that v stands for is
        finished."""
        memory, content, lives, r = state
        after = list(memory)
        after[a] = v
        p, i = divmod(a - self.ring.fence[0][0], self.ring.slots)  # the rows lie side by side
        after[self.ring.paid[p][i]] = v
        of = p, i, v
        lives = tuple(
            replace(life, read=tuple(self._finish(x, of) for x in life.read)) for life in lives
        )
        return tuple(after), content, lives, r

    def _finish(self, read, of):
        same = (read.producer, read.seq % self.ring.slots, read.value) == of
        return replace(read, finished=True) if same else read

    def _with(self, state, k, *, memory=None, content=None, **changed):
        old_memory, old_content, lives, r = state
        life = Life(**{**vars(lives[k]), **changed})
        lives = (*lives[:k], life, *lives[k + 1 :])
        return memory or old_memory, content or old_content, lives, r

    def _without(self, memory, tag, addresses):
        """The kernel forgets process `tag`."""
        return tuple(0 if v == tag and a in addresses else v for a, v in enumerate(memory))

    # ------------------------------------------------------------------ what must hold

    def _wrong(self, state):
        memory, _, lives, _ = state
        ring, running = self.ring, {}
        for process, life in zip(self.processes, lives, strict=True):
            for queue in life.streams:
                if queue and queue[0][0] in ("read", "write"):
                    (what, i, s), name = queue[0], process.name
                    torn = any(r.seq == s and self._torn(memory, r) for r in life.read)
                    for other, did, x, garbage in running.setdefault(i, []):
                        if _clash((what, s, torn), (did, x, garbage)):
                            return f"invariant 10: {name} {what}s {s} while {other} {did}s {x}"
                    running[i].append((name, what, s, torn))
            for r in life.read if life.status == ALIVE else ():
                told = self._torn(memory, r)
                if told is False and r.whole is False:
                    return f"invariant 11: {process.name} is told that torn {r.seq} is whole"
                # The only false alarm is that a later owner of the number has taken the mark's
                # place.
                if told and r.finished and memory[ring.id[r.producer]] == r.producer_id:
                    return f"invariant 11: {process.name} is told that finished {r.seq} is torn"
        for p in range(ring.peers):
            for i in range(ring.slots):
                if memory[ring.fence[p][i]] > memory[ring.work[p][i]]:
                    return f"invariant 8: fence[{p}][{i}] beyond its promise"
        return None

    def _torn(self, memory, read):
        """Whether the frame is torn for a reader that asks now.  None while nobody knows yet."""
        i = read.seq % self.ring.slots
        if memory[self.ring.fence[read.producer][i]] < read.value:
            return None
        return run(memory, self.ring.torn(i, read.producer, read.producer_id, read.value))

    def _unfinished(self, state):
        for process, life in zip(self.processes, state[2], strict=True):
            if any(life.streams):
                return f"a stream of {process.name} is blocked for ever"
            if life.status == ALIVE and life.step < len(process.script):
                return f"{process.name} waits for ever in {process.script[life.step]}"
        return None

    def _report(self, wrong, parent, state, last, began):
        trace = [last] if last else []
        while state is not None:
            state, what = parent[state]
            trace.append(what)
        trace = tuple(reversed([t for t in trace if t]))
        return Report(len(parent), time.perf_counter() - began, wrong, trace)


def _clash(*accesses):
    """Whether these two must not run at once.  Each is (what, seq, whether the frame is called
    torn).

    One overlap is harmless: a reader of a frame that is already marked torn (it was never written,
    and its fence was raised) may overlap the write of an older frame.  It reads garbage, and is
    told so.
    """
    if accesses[0][0] == accesses[1][0]:
        return accesses[0][0] == "write"
    (_, reading, torn), (_, writing, _) = sorted(accesses)
    return writing > reading or not torn


def _told(ring, op, memory):
    """One step of the reaper, as people read it."""
    if op[0] == WAIT:
        return "somebody may be dead"
    name, _, new = ring.names[op[1]], *effect(memory, op)[1:]
    then = "" if new is None else f" -> {show(name, new)}"
    return f"{KINDS[op[0]]} {name} {show(name, memory[op[1]])}{then}"
