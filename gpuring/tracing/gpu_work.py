"""What was pending on the GPU when a verb had returned."""

from __future__ import annotations

from collections.abc import Sequence

from gpuring.tracing.collector import TracedRing
from gpuring.tracing.state import Seen
from gpuring.tracing.tracks import Args, Picture

_REAP_NS = 1_000_000
"""A reaper notes the time of a death so long, at the most, after it has raised the fences."""


class GpuWork:
    def __init__(self, picture: Picture, rings: Sequence[TracedRing], ended_ns: int) -> None:
        self._picture, self._rings, self._ended_ns = picture, rings, ended_ns

    def left_by(self, seen: Seen, verb: str) -> None:
        """A peer has published, released or abandoned a slot."""
        ring, peer, (seq, value, *_) = self._rings[seen.ring.index], seen.peer, seen.about
        if ring.fences is None or value >> 16 != seq:  # nothing was promised for it
            return
        key = "GPU", seen.ring.index, peer.key
        name, process = f"{ring.title}: GPU", self._picture.process(peer.pid)
        what = f"GPU: {verb} {seq}"
        args: Args = {"ring": ring.name, "sequence": seq}
        step = ring.fences.reached(peer.key[0], seq % seen.ring.slots, value)
        if ring.header.sync == "event":
            if step is not None:
                track = self._picture.track(key, name, process)
                self._picture.instant(track, f"{what} was seen to be done", step.seen_ns, args)
            return
        if step is None:
            until_ns, args["end"] = self._ended_ns, "still pending"
        else:
            until_ns = step.before_ns
            args["was done at most so many µs later"] = -(-(step.seen_ns - until_ns) // 1000)
            if any(
                (death.number, death.pid) == (peer.key[0], peer.pid)
                and seen.at <= death.time_ns <= step.seen_ns + _REAP_NS
                for death in ring.known.deaths.values()
            ):
                args["end"] = "it died"
        if until_ns > seen.at:
            it = self._picture.begin_in_lane(key, name, process, what, seen.at, "gpu", args)
            self._picture.end(it, until_ns)
