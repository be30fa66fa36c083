"""Frames that a bridge carries from one ring to another one.

The publication of such a frame tells which sequence of the near ring it was, and the far ring's
header tells which ring that is.  If that is in the trace, the frame is followed over the bridge.
If not, as when it is on another host, the trace says when the frame has arrived (join.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuring.printable import printable
from gpuring.registry.subscriptions import is_read_elsewhere
from gpuring.tracing.collector import TracedRing
from gpuring.tracing.hosts import ARRIVES
from gpuring.tracing.state import RingState, Seen
from gpuring.tracing.tracks import Args, Picture, Slice


class Hops:
    def __init__(self, picture: Picture, rings: Sequence[TracedRing]) -> None:
        self._picture, self._rings = picture, rings
        by_epoch = {ring.header.epoch: k for k, ring in enumerate(rings)}
        self._near = {k: by_epoch.get(ring.header.link()[0]) for k, ring in enumerate(rings)}
        """For each ring: the ring from which a bridge brings its frames, if that is traced, too."""
        self._taken: dict[tuple[int, int], list[tuple[str, Slice]]] = {}
        self._hops: dict[tuple[int, int], Slice] = {}

    def taken(self, ring: RingState, seq: int, it: Slice) -> None:
        """`it` reads a frame, perhaps for a bridge, or perhaps one that a bridge has brought."""
        subscription = str(it.args.get("subscription", ""))
        if is_read_elsewhere(subscription):
            it.args["epoch"] = self._rings[ring.index].header.epoch.hex()
            self._taken.setdefault((ring.index, seq), []).append((subscription, it))
        if (ring.index, seq) in self._hops:
            self._picture.arrow(self._hops[ring.index, seq], it)

    def published(self, seen: Seen) -> None:
        """A frame has come to the far ring, or nobody has brought it."""
        far, (seq, _, origin, *_) = seen.ring, seen.about
        near = self._near[far.index]
        if not origin:
            return
        if near is None:
            self._arrives(seen, seq, origin)
            return
        taken = self._taken.get((near, origin), [])
        its = [it for name, it in taken if len(taken) == 1 or name.endswith(f"/{far.name}")]
        if not its:
            return
        from_name = self._rings[near].name
        track = self._picture.track(
            ("bridges", far.index), f"bridge {self._rings[near].title} to {far.title}"
        )
        args: Args = {"from": from_name, "to": far.name, "sequence": seq}
        hop = self._picture.begin_in_lane(
            ("bridge", far.index),
            "frames",
            track,
            f"carries {origin}",
            its[-1].begin_ns,
            "hop",
            args,
        )
        self._picture.end(hop, seen.at)
        self._picture.arrow(its[-1], hop)
        self._keep(far, seq, hop)

    def _arrives(self, seen: Seen, seq: int, origin: int) -> None:
        far, near = seen.ring, self._rings[seen.ring.index].near
        if near is None:
            return
        host, name, epoch = near
        key = "bridge", far.index
        title = f"bridge {printable(host)}/{printable(name)} to {far.title}"
        track = self._picture.track(key, title)
        args: Args = {"near epoch": epoch, "near sequence": origin}
        args |= {"to": far.name, "sequence": seq}
        it = self._picture.begin_in_lane(
            key, "frames", track, f"{ARRIVES} {origin}", seen.at, "hop", args
        )
        self._picture.end(it, seen.at)
        self._keep(far, seq, it)

    def _keep(self, far: RingState, seq: int, hop: Slice) -> None:
        self._hops[far.index, seq] = hop
        self._hops.pop((far.index, seq - 2 * far.slots), None)
