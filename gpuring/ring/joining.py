"""How a peer joins a ring: what `Ring.producer` and `Ring.consumer` were asked for.

A peer that goes on over restarts keeps these terms, and joins the next ring of that name with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpuring import native
from gpuring.arguments import flag, integer
from gpuring.registry import diagnosis, labels
from gpuring.registry.subscriptions import FOREVER_NS, encode
from gpuring.ring import spinning

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuring.native import Device, Header, Peer
    from gpuring.ring.endpoint import Gate, JoinedRing


@dataclass(frozen=True)
class AsProducer:
    """What `Ring.producer` was asked for."""

    gate: Gate | None = None
    spin: float | None = None
    label: str | None = None

    def __call__(self, ring: JoinedRing) -> Peer:
        """Joins `ring`.  Raises what `Ring.producer` raises."""
        ring._check_open()
        return _peer(self, ring, native.join_producer)


@dataclass(frozen=True)
class AsConsumer:
    """What `Ring.consumer` was asked for.  Raises TypeError, ValueError."""

    subscription: str | None
    lossless: bool
    redeliver: bool = True
    durable: bool = False
    patience: float | None = None
    gate: Gate | None = None
    spin: float | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        for what in ("lossless", "redeliver", "durable"):
            flag(getattr(self, what), what)
        if self.patience is not None and not self.durable:
            raise ValueError("patience= is for a durable subscription: pass durable=True as well")
        if self.durable and self.subscription is None:
            raise ValueError("a durable subscription needs a name, by which it is found again")

    def __call__(self, ring: JoinedRing, start: Literal["next", "oldest"] | int = "oldest") -> Peer:
        """Joins `ring`.  Raises what `Ring.consumer` raises."""
        ring._check_open()
        name, lossless, redeliver = self.subscription, self.lossless, self.redeliver
        if self.durable:
            ring.subscribe(
                name, lossless=lossless, start=start, redeliver=redeliver, patience=self.patience
            )
        if name is not None:
            native.settle(ring.name, ring._header)
        encoded, begin = native.unnamed() if name is None else encode(name), checked_start(start)

        def join(peer: Peer, device: Device | None, gate_host: bool) -> Peer | int:
            return native.join_consumer(
                peer, encoded, lossless, begin, redeliver, device, gate_host
            )

        return _peer(self, ring, join, encoded)


def _peer(
    asked: AsProducer | AsConsumer,
    ring: JoinedRing,
    join: Callable[[Peer, Device | None, bool], Peer | int],
    subscription: bytes = b"",
) -> Peer:
    """What `join` makes of a new peer, which waits and is called as it was asked for."""
    header = ring._header
    gate_host, spin_ns = _waits_on_host(header, asked.gate), spinning.spin_ns(asked.spin)
    shown = labels.encode(asked.label)
    peer = join(native.Peer(header, ring.name), ring._device, gate_host)
    if isinstance(peer, int):
        raise diagnosis.cannot_join(ring.name, header, peer, subscription)
    peer.set_label(shown)
    peer.set_spin(spin_ns)
    return peer


def patience_ns(patience: float | None) -> int:
    """`Ring.subscribe(patience=)` in nanoseconds.  0 leaves it as it is, and at first that is for
    ever.  So the least patience is 1 ns."""
    if patience is None:
        return 0
    given = native.seconds(patience, "patience")
    return FOREVER_NS if given > 9e9 else max(1, round(given * 1e9))


def checked_start(start: Literal["next", "oldest"] | int) -> Literal["next", "oldest"] | int:
    """Raises TypeError, ValueError."""
    if not isinstance(start, str):
        start = integer(start, "start", '"next", "oldest" or a sequence')
    if not (start in ("next", "oldest") or (isinstance(start, int) and 0 <= start < 2**47)):
        raise ValueError(f'start must be "next", "oldest" or a sequence, not {start!r}')
    return start


def _waits_on_host(header: Header, gate: Gate | None) -> bool:
    """Whether a peer with this `gate` waits on the host for GPU work.  None is the ring's gate."""
    if gate not in (None, *native.GATES):
        raise ValueError(f'gate must be "stream", "host" or None, not {gate!r}')
    return (gate or header.gate) == "host"
