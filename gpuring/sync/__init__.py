"""Device order: how a stream is made to wait for what other peers' GPUs still have to do.

Host order (the atomics of core/) and device order (streams) meet in four places: claim, publish,
acquire, release.  Those call a synchroniser through `gpuring._core.Peer`; `event.py` and
`timeline.py` are the only places of the package that record and wait.  A ring in host memory has
none: the CPU stores its fences itself.

A fence value is promised before its operation is enqueued, and made visible to others after it.  So
whoever is asked to wait for a value waits for something that is already in some stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuring._core import Peer


class Sync(Protocol):
    """One synchroniser per attached ring.  Streams are raw handles, as from `streams.handle`."""

    name: str
    """"event" or "timeline"."""

    def join(self, peer: Peer, gate: str) -> None:
        """Before the peer's first verb: makes what it records with and tells the others.

        `gate` says how `order` makes this peer wait: "stream" or "host".
        """

    def leave(self, peer: Peer) -> None:
        """Waits on the host until the GPU has paid what the peer promised (Ctrl-C interrupts), then
        gives back what `join` made."""

    def current_stream(self) -> int:
        """CuPy's current stream."""

    def follow(self, stream: int, others: Sequence[int]) -> None:
        """Makes `stream` wait for all work so far on `others` (streams of this process)."""

    def record(self, peer: Peer, index: int, value: int, streams: Sequence[int]) -> None:
        """Enqueues "fence[index][peer] = value" behind all work so far on all of `streams`."""

    def order(self, peer: Peer, stream: int, owner: int, index: int, value: int) -> bool:
        """Orders `stream` after fence[index][owner] >= value.

        With gate "stream" this enqueues a wait and returns True at once; with gate "host" it blocks
        until the fence is there and returns False if `peer.past_deadline()` came first.
        """

    def settle(self, peer: Peer, index: int, value: int, streams: Sequence[int]) -> None:
        """After a `record` that raised, so that nobody knows whether it was enqueued: waits on the
        host for `streams`, then raises the fence from the CPU."""

    def close(self) -> None:
        """When no peer is left: unregisters, closes what was opened.  Raises nothing."""
