"""Joining a ring: what `Ring.producer` and `Ring.consumer` check, and how they get a peer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gpuring import native
from gpuring.arguments import integer
from gpuring.registry import diagnosis, labels
from gpuring.registry.subscriptions import encode, text_of, unnamed
from gpuring.ring import spinning

if TYPE_CHECKING:
    from gpuring.native import Device, Header, Peer
    from gpuring.ring.endpoint import Gate


def as_producer(
    name: str,
    header: Header,
    device: Device | None,
    gate: Gate | None,
    spin: float | None,
    label: str | None,
) -> Peer:
    """Joins the ring `name` as a producer.  Raises what `Ring.producer` raises."""
    gate_host, spin_ns = _waits_on_host(header, gate), spinning.spin_ns(spin)
    shown = labels.encode(label)
    peer = native.join_producer(native.Peer(header), device, gate_host)
    if isinstance(peer, int):
        raise diagnosis.cannot_join(name, header, peer, "")
    peer.set_label(shown)
    peer.set_spin(spin_ns)
    return peer


def as_consumer(
    name: str,
    header: Header,
    device: Device | None,
    subscription: str | None,
    lossless: bool,
    start: Literal["next", "oldest"] | int,
    gate: Gate | None,
    redeliver: bool,
    spin: float | None,
    label: str | None,
) -> Peer:
    """Joins a subscription of the ring `name`.  Raises what `Ring.consumer` raises."""
    gate_host, spin_ns = _waits_on_host(header, gate), spinning.spin_ns(spin)
    encoded = unnamed().encode() if subscription is None else encode(subscription)
    start, shown = checked_start(start), labels.encode(label)
    peer = native.join_consumer(
        native.Peer(header), encoded, lossless, start, redeliver, device, gate_host
    )
    if isinstance(peer, int):
        raise diagnosis.cannot_join(name, header, peer, text_of(encoded))
    peer.set_label(shown)
    peer.set_spin(spin_ns)
    return peer


def checked_start(start: Literal["next", "oldest"] | int) -> Literal["next", "oldest"] | int:
    """Raises TypeError, ValueError."""
    if not isinstance(start, str):
        start = integer(start, "start", '"next", "oldest" or a sequence')
    if not (start in ("next", "oldest") or (isinstance(start, int) and 0 <= start < 2**47)):
        raise ValueError(f'start is "next", "oldest" or a sequence, not {start!r}')
    return start


def _waits_on_host(header: Header, gate: Gate | None) -> bool:
    """Whether a peer with this `gate` waits on the host for GPU work.  None is the ring's gate."""
    if gate not in (None, *native.GATES):
        raise ValueError(f'gate is "stream", "host" or None, not {gate!r}')
    return (gate or header.gate) == "host"
