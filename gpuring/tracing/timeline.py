"""From the events of peers to a picture: who wrote, read and waited when, and what led to what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gpuring import native
from gpuring.native.tracer import KINDS
from gpuring.printable import counted, printable
from gpuring.tracing import hosts
from gpuring.tracing.calls import Calls
from gpuring.tracing.collector import Events, TracedRing
from gpuring.tracing.culprits import culprit_of, is_in_loop
from gpuring.tracing.gpu_work import GpuWork
from gpuring.tracing.hops import Hops
from gpuring.tracing.state import BEFORE, PeerState, RingState, Seen, ThreadState
from gpuring.tracing.tracks import Args, Picture, Slice
from gpuring.tracing.who import ID_MASK, Death, Who

_ENDS_A_WAIT = ("claim", "acquire", "drop", "tear", "stop", "leave")
"""What a peer does when it waits no more in an event loop."""


class Timeline:
    """Reads the events once, in the order of time.  `pids` has what processes are called."""

    def __init__(self, rings: Sequence[TracedRing], ended_ns: int) -> None:
        self.picture = Picture()
        self.pids: dict[int, str] = {}
        self._traced, self._ended_ns = rings, ended_ns
        self._rings: list[RingState] = []
        self._threads: dict[tuple[int, int], ThreadState] = {}
        self._first: dict[tuple[int, int], tuple[int, int]] = {}
        """For each peer number of a ring: when its first event was, and whose."""
        self._shown = Counter[tuple[int, int]]()
        """For each: how many missing events the picture shows."""
        self._calls = Calls(self.picture, self.pids)
        self._hops = Hops(self.picture, rings)
        self._gpu_work = GpuWork(self.picture, rings, ended_ns)
        self._act: dict[str, Callable[[Seen], None]] = {
            "join": self._join,
            "leave": self._leave,
            "claim": self._claim,
            "publish": self._publish,
            "abandon": self._abandon,
            "acquire": self._acquire,
            "release": self._release,
            "return": self._return,
            "drop": self._drop,
            "tear": self._tear,
            "call": self._call,
            "wait": self._wait,
            "stop": self._stop,
        }
        for k, ring in enumerate(rings):
            track = self.picture.track(("ring", k), f"ring {ring.title}")
            state = RingState(
                k, ring.name, ring.title, ring.header.slots, ring.known, track, ring.begun_ns,
                is_far=ring.near is not None,
            )  # fmt: skip
            self._rings.append(state)
            hosts.tell(self.picture, track, ring)
            if any(ring.name == before.name for before in rings[:k]):
                self.picture.instant(track, f"{ring.name} was made again", ring.begun_ns)
            for who in ring.known.peers.values():
                self.pids.setdefault(who.pid, who.label)

    def draw(self) -> Picture:
        deaths = sorted(self._deaths(), key=lambda each: each[1].time_ns)
        for at, k, number, row in _in_order(self._traced):
            while deaths and deaths[0][1].time_ns <= at:
                self._die(*deaths.pop(0))
            self._see(self._rings[k], number, at, row)
        for each in deaths:
            self._die(*each)
        self._end()
        self._calls.draw()
        return self.picture

    def _see(self, ring: RingState, number: int, at: int, row: list[int]) -> None:
        turn, _, what, who, *about = row
        pid, tid, kind = who >> 32, what >> 32, KINDS.get(what & 0xFFFFFFFF, "")
        thread = self._threads.setdefault((pid, tid), ThreadState(pid, tid))
        key = number, who & ID_MASK
        peer = ring.peers.setdefault(key, PeerState(key, pid))
        self._first.setdefault((ring.index, number), (at, pid))
        if peer.turn and turn > peer.turn + 1:
            self._miss(ring, peer, turn - peer.turn - 1)
        peer.turn, peer.last_ns = turn, at
        if kind in ("begin", "end"):
            if thread.seen != (at, what):  # each traced ring of the process has it
                thread.seen = at, what
                self._annotate(thread, kind, at, about)
            return
        if key not in ring.known.peers:
            consumes = kind == "join" and about[1] < native.MAX_SUBSCRIPTIONS
            subscription = about[1] if consumes else None
            ring.known.peers[key] = Who(pid, self.pids.get(pid, ""), subscription, at)
        waited = kind != "wait" and self._stop_waiting(thread, at)
        waited |= kind in _ENDS_A_WAIT and self._stop_awaiting(peer, at)
        if kind in self._act:
            self._act[kind](Seen(ring, peer, thread, at, about, waited))

    def _miss(self, ring: RingState, peer: PeerState, missing: int) -> None:
        """Some of its events were overwritten, so nobody knows when what was open has ended."""
        for seq in [*peer.open]:
            self._close(ring, peer, peer.last_ns, seq, "not seen")
        self._stop_awaiting(peer, peer.last_ns)
        self._shown[ring.index, peer.key[0]] += missing
        self._show_missing(ring, peer.pid, missing, peer.last_ns)

    def _show_missing(self, ring: RingState, pid: int, missing: int, at: int) -> None:
        args: Args = {"ring": ring.name}
        self.picture.instant(
            self.picture.process(pid), f"{counted(missing, 'event')} missing", at, args
        )

    # ---- slots ----------------------------------------------------------------------------------

    def _open(self, seen: Seen, verb: str) -> Slice:
        ring, peer, seq = seen.ring, seen.peer, seen.about[0]
        self._close(ring, peer, seen.at, seq, "not seen")
        args: Args = {"ring": ring.name, "sequence": seq}
        track = f"{ring.title}: {verb}"
        subscription = ring.who(peer.key).subscription
        if subscription is not None:
            args["subscription"] = ring.subscription(subscription)
            track += f" as {args['subscription']}"
        process, lane = self.picture.process(peer.pid), (ring.index, peer.key)
        name = f"{verb} {seq}"
        it = self.picture.begin_in_lane(lane, track, process, name, seen.at, verb, args)
        peer.open[seq] = it
        ring.used(seq, 1)
        self._count_used(ring, seen.at)
        return it

    def _close(
        self, ring: RingState, peer: PeerState, at: int, seq: int, how: str = ""
    ) -> Slice | None:
        it = peer.open.pop(seq, None)
        if it is None:  # it began before the trace
            return None
        if how:
            it.args["end"] = how
        self.picture.end(it, at)
        ring.used(seq, -1)
        self._count_used(ring, at)
        return it

    def _claim(self, seen: Seen) -> None:
        ring, seq = seen.ring, seen.about[0]
        it = self._open(seen, "writes")
        ring.written[seq] = it
        ring.written.pop(seq - 2 * ring.slots, None)
        before = ring.released.pop(seq - ring.slots, None)
        if before is not None and seen.waited:  # the claim has needed it
            self.picture.arrow(before, it)

    def _publish(self, seen: Seen) -> None:
        self._close(seen.ring, seen.peer, seen.at, seen.about[0])
        self._gpu_work.left_by(seen, "writes")
        self._hops.published(seen)
        seen.ring.newest = max(seen.ring.newest, seen.about[0])
        for subscription in seen.ring.taken:
            self._count_lag(seen.ring, subscription, seen.at)

    def _abandon(self, seen: Seen) -> None:
        self._close(seen.ring, seen.peer, seen.at, seen.about[0], "abandoned")
        self._gpu_work.left_by(seen, "writes")

    def _acquire(self, seen: Seen) -> None:
        ring, (seq, lost, again, *_) = seen.ring, seen.about
        it = self._open(seen, "reads")
        if seq in ring.written:
            self.picture.arrow(ring.written[seq], it)
        self._calls.taken(ring.name, seq, it)
        self._hops.taken(ring, seq, it)
        if again:
            self.picture.instant(it.track, f"{seq} comes again", seen.at, {"ring": ring.name})
        if lost:
            it.args["lost before it"] = lost
        subscription = ring.who(seen.peer.key).subscription
        if subscription is not None:
            ring.taken[subscription] = max(seq, ring.taken.get(subscription, -1))
            ring.lost[subscription] = ring.lost.get(subscription, 0) + lost
            self._count_lag(ring, subscription, seen.at)
            self._count(ring, "lost by", subscription, seen.at, ring.lost[subscription])

    def _release(self, seen: Seen) -> None:
        it = self._close(seen.ring, seen.peer, seen.at, seen.about[0])
        if it is not None:
            seen.ring.released[seen.about[0]] = it
        self._gpu_work.left_by(seen, "reads")

    def _return(self, seen: Seen) -> None:
        self._close(seen.ring, seen.peer, seen.at, seen.about[0], "given back")

    def _drop(self, seen: Seen) -> None:
        ring, process = seen.ring, self.picture.process(seen.peer.pid)
        ring.dropped += 1
        self.picture.instant(process, f"no slot of {ring.name} for a frame", seen.at)
        key = "dropped", ring.index
        self.picture.count(key, "frames without a slot", ring.track, seen.at, ring.dropped)

    def _tear(self, seen: Seen) -> None:
        n, process = seen.about[0], self.picture.process(seen.peer.pid)
        what = f"passes over {counted(n, 'torn frame')} of {seen.ring.name}"
        self.picture.instant(process, what, seen.at)

    def _call(self, seen: Seen) -> None:
        seq, client, call, *_ = seen.about
        if seq in seen.peer.open:
            self._calls.written(seen.ring.name, seq, client, call, seen.peer.open[seq])

    def _stop(self, seen: Seen) -> None:
        """A wait has ended without a slot."""

    # ---- counters -------------------------------------------------------------------------------

    def _count(self, ring: RingState, what: str, subscription: int, at: int, n: int) -> None:
        name = f"{what} {ring.subscription(subscription)}"
        self.picture.count((what, ring.index, subscription), name, ring.track, at, n)

    def _count_lag(self, ring: RingState, subscription: int, at: int) -> None:
        if ring.newest >= 0:
            lag = max(0, ring.newest - ring.taken[subscription])
            self._count(ring, "lag of", subscription, at, lag)

    def _count_used(self, ring: RingState, at: int) -> None:
        self.picture.count(("used", ring.index), "slots in use", ring.track, at, len(ring.users))

    # ---- members --------------------------------------------------------------------------------

    def _join(self, seen: Seen) -> None:
        process = self.picture.process(seen.peer.pid)
        self.picture.instant(process, f"joins {seen.ring.name}", seen.at)

    def _leave(self, seen: Seen) -> None:
        for seq in [*seen.peer.open]:
            self._close(seen.ring, seen.peer, seen.at, seq, "it left")
        seen.ring.gone.add(seen.peer.key)
        process = self.picture.process(seen.peer.pid)
        self.picture.instant(process, f"leaves {seen.ring.name}", seen.at)

    def _deaths(self) -> Iterator[tuple[RingState, Death]]:
        for ring, traced in zip(self._rings, self._traced, strict=True):
            for death in traced.known.deaths.values():
                if traced.begun_ns <= death.time_ns <= self._ended_ns:
                    yield ring, death

    def _die(self, ring: RingState, death: Death) -> None:
        at, pid = death.time_ns, death.pid
        for peer in ring.peers.values():
            if (peer.key[0], peer.pid) == (death.number, pid):
                self._stop_awaiting(peer, at)
                for seq in [*peer.open]:
                    self._close(ring, peer, at, seq, "it died")
        ring.gone |= {
            key
            for key, who in ring.known.peers.items()
            if (key[0], who.pid) == (death.number, pid) and who.joined_ns <= at
        }
        for thread in self._threads.values():
            if thread.pid == pid:
                self._stop_waiting(thread, at)
                self._stop_own(thread, at)
        name = f"{death.label or 'a process'}, pid {pid}, is dead"
        self.picture.instant(self.picture.process(pid), name, at, {"ring": ring.name})

    # ---- threads --------------------------------------------------------------------------------

    def _wait(self, seen: Seen) -> None:
        ring, thread, key = seen.ring, seen.thread, (seen.ring.index, seen.peer.key)
        words, args, kind = culprit_of(ring, seen.at, seen.about)
        if is_in_loop(seen.about):
            self._await(seen, words, args, kind)
            return
        if thread.wait.get(key, ("", {}))[0] == words:
            return  # it still waits for the same
        since, thread.waits_since_ns = thread.waits_since_ns, seen.about[3]
        at = _begin_of_wait(seen, args, since)
        waits = {**thread.wait, key: (words, args)}
        if len(waits) > 1:  # gpuring.select
            words, kind = f"waits for any of {len(waits)} rings", "idle"
            args = {self._rings[k].name: its for (k, _), (its, _) in waits.items()}
        if thread.slice is not None and key not in thread.wait:  # it has begun just now
            thread.slice.name, thread.slice.args, thread.slice.kind = words, args, kind
        else:
            self._stop_waiting(thread, at)
            track = self.picture.thread(thread.pid, thread.tid)
            thread.slice = self.picture.begin(track, words, at, kind, args)
        thread.wait = waits

    def _stop_waiting(self, thread: ThreadState, at: int) -> bool:
        it, thread.slice, thread.wait = thread.slice, None, {}
        if it is not None:
            self.picture.end(it, at)
        return it is not None

    def _await(self, seen: Seen, words: str, args: Args, kind: str) -> None:
        """Its thread does other things meanwhile, so the wait is not among those of the thread."""
        ring, peer = seen.ring, seen.peer
        if peer.awaits is not None and peer.awaits.name == words:
            return  # it still waits for the same
        self._stop_awaiting(peer, seen.at)
        key, process = ("awaits", ring.index, peer.key), self.picture.process(peer.pid)
        track = f"{ring.title}: waits in an event loop"
        since, peer.awaits_since_ns = peer.awaits_since_ns, seen.about[3]
        at = _begin_of_wait(seen, args, since)
        peer.awaits = self.picture.begin_in_lane(key, track, process, words, at, kind, args)

    def _stop_awaiting(self, peer: PeerState, at: int) -> bool:
        it, peer.awaits = peer.awaits, None
        if it is not None:
            self.picture.end(it, at)
        return it is not None

    def _annotate(self, thread: ThreadState, kind: str, at: int, about: list[int]) -> None:
        self._stop_waiting(thread, at)
        raw = b"".join(word.to_bytes(8, "little") for word in about).rstrip(b"\0")
        name = printable(raw.decode(errors="replace"))
        if kind == "begin":
            track = self.picture.thread(thread.pid, thread.tid)
            args: Args = {"by": "gpuring.annotate"}
            thread.own.append(self.picture.begin(track, name, at, "own", args))
        elif any(it.name == name for it in thread.own):  # else it began before the trace
            while thread.own[-1].name != name:
                self.picture.end(thread.own.pop(), at)
            self.picture.end(thread.own.pop(), at)

    def _stop_own(self, thread: ThreadState, at: int) -> None:
        while thread.own:
            self.picture.end(thread.own.pop(), at)

    def _end(self) -> None:
        """What still goes on when the trace ends, and what was gone before the first event."""
        at = self._ended_ns
        for (k, number), (first_ns, pid) in self._first.items():
            missing = self._traced[k].tracer.missed(number) - self._shown[k, number]
            if missing > 0:
                self._show_missing(self._rings[k], pid, missing, first_ns)
        for ring in self._rings:
            for peer in ring.peers.values():
                for seq in [*peer.open]:
                    self._close(ring, peer, max(at, peer.last_ns), seq, "still open")
                if peer.awaits is not None:
                    peer.awaits.args["end"] = "still waits"
                self._stop_awaiting(peer, at)
        for thread in self._threads.values():
            if thread.slice is not None:
                thread.slice.args["end"] = "still waits"
            self._stop_waiting(thread, at)
            self._stop_own(thread, at)


def _begin_of_wait(seen: Seen, args: Args, last_since_ns: int) -> int:
    """When the slice of a wait begins: with the trace, if the wait is older than that.  Then `args`
    say so, unless the wait is the last one, which goes on for somebody else."""
    since_ns = seen.about[3]
    older_ns = seen.ring.begun_ns - since_ns
    if older_ns <= 0 or since_ns == last_since_ns:
        return seen.at
    args[BEFORE] = f"{older_ns / 1e9:.3f} s"
    return min(seen.at, seen.ring.begun_ns)


def _in_order(rings: Sequence[TracedRing]) -> Iterator[tuple[int, int, int, list[int]]]:
    """(time, index of the ring, number of the peer, event) of all events, in the order of time."""
    parts: list[Events] = []
    marks: list[tuple[int, int]] = []
    for k, ring in enumerate(rings):
        for number, pieces in ring.parts.items():
            for piece in pieces:
                got = piece[piece[:, 0] != 0]
                parts.append(got)
                marks += [(k, number)] * len(got)
    if not parts:
        return
    events = np.concatenate(parts)
    for at in np.argsort(events[:, 1], kind="stable").tolist():
        row = events[at].tolist()
        yield row[1], *marks[at], row
