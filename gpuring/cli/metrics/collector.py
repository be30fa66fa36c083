"""What a scrape gets: made anew from the headers each time, so there is no state to go stale.

Names follow Prometheus' conventions: base units, `_total` for what only rises.  Labels are bounded:
a peer is known by its number in the ring's table (0 … 249, used again), never by its pid, and an
unnamed subscription by the number of its one member.  A peer's counters begin at 0 when another
peer gets its number, which rate() takes for the reset that it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gpuring.cli.services import service
from gpuring.printable import printable
from gpuring.registry import survey
from gpuring.registry.jams import STUCK_S, jams
from gpuring.registry.stats import PeerStats, RingStats, SubscriptionStats
from gpuring.registry.subscriptions import is_unnamed

RING = ("ring",)
PEER = ("ring", "peer")
READER = ("ring", "peer", "subscription")
SUBSCRIPTION = ("ring", "subscription", "kind")


class RingCollector(Collector):
    """All rings of this host, or the first `max_rings` of them by name."""

    def __init__(self, max_rings: int) -> None:
        self._max_rings = max_rings

    def describe(self) -> list[Metric]:
        """Nothing is known before a scrape; without this, registering would be one."""
        return []

    def collect(self) -> Iterator[Metric]:
        found, unreadable = survey.all_rings()
        yield GaugeMetricFamily(
            "gpuring_rings",
            "How many rings of this host can be read, including those beyond --max-rings.",
            len(found),
        )
        yield GaugeMetricFamily(
            "gpuring_rings_unreadable",
            "How many names of rings are damaged, of another version or user, or no files.",
            len(unreadable),
        )
        told = found[: self._max_rings]
        yield from _rings(told)
        yield from _bridges(told)
        yield from _subscriptions(told)
        yield from _peers(told)
        yield from _stuck(found)


def _rings(rings: Sequence[RingStats]) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "gpuring_ring_info",
        "Always 1: where its slots are, and how GPU work on them is ordered.",
        labels=("ring", "memory", "sync", "gate"),
    )
    created = _gauge("gpuring_ring_created_timestamp_seconds", "When the ring was created.", RING)
    slots = _gauge("gpuring_ring_slots", "How many slots the ring has.", RING)
    nbytes = _gauge("gpuring_ring_slot_bytes", "How large a slot is.", RING)
    closed = _gauge("gpuring_ring_closed", "1: the ring was closed, so nobody can claim.", RING)
    creator = _gauge("gpuring_ring_creator_alive", "0: the ring's creator is dead.", RING)
    claimed = _counter(
        "gpuring_sequences_claimed_total", "How many sequences were claimed, also void ones.", RING
    )
    deaths = _counter("gpuring_peer_deaths_total", "How many dead peers were cleared.", RING)
    dropped = _counter(
        "gpuring_frames_dropped_total", "How many frames producers had no free slot for.", RING
    )
    peers = _gauge("gpuring_peers", "How many peers are in the ring.", ("ring", "role", "state"))
    for one in rings:
        ring = [one.name]
        info.add_metric([one.name, one.memory, one.sync, one.gate], 1)
        created.add_metric(ring, one.created_ns / 1e9)
        slots.add_metric(ring, one.slots)
        nbytes.add_metric(ring, one.slot_nbytes)
        closed.add_metric(ring, one.closed)
        creator.add_metric(ring, one.creator_alive)
        claimed.add_metric(ring, one.cursor - one.slots)
        deaths.add_metric(ring, one.reaps)
        dropped.add_metric(ring, one.dropped)
        states = [(peer.role, "alive" if peer.alive else "dead") for peer in one.peers]
        for role in ("producer", "consumer"):
            for state in ("alive", "dead"):
                peers.add_metric([one.name, role, state], states.count((role, state)))
    yield from (info, created, slots, nbytes, closed, creator, claimed, deaths, dropped, peers)


def _bridges(rings: Sequence[RingStats]) -> Iterator[Metric]:
    """The metrics of rings that a bridge fills, as far as it has measured while it is connected."""
    labels = ("ring", "host")
    connected = _gauge(
        "gpuring_bridge_connected",
        "0: the bridge has had no connection to the other host for 20 s.",
        labels,
    )
    round_trip = _gauge(
        "gpuring_bridge_round_trip_seconds",
        "The shortest of the last round trips to the other host.",
        labels,
    )
    ahead = _gauge(
        "gpuring_bridge_clock_ahead_seconds",
        "How far CLOCK_MONOTONIC of the other host is ahead, give or take half of the round trip.",
        labels,
    )
    for one in rings:
        if one.link is None:
            continue
        names = [one.name, printable(one.link.host)]
        connected.add_metric(names, one.link.connected)
        if one.link.connected and (clock := one.link.clock) is not None:
            round_trip.add_metric(names, 2 * clock.error_ns / 1e9)
            ahead.add_metric(names, clock.ahead_ns / 1e9)
    yield from (connected, round_trip, ahead)


def _subscriptions(rings: Sequence[RingStats]) -> Iterator[Metric]:
    lag = _gauge(
        "gpuring_subscription_lag_frames",
        "How many sequences there are from the oldest frame that the subscription has not released "
        "to the newest claim.",
        SUBSCRIPTION,
    )
    lost = _counter(
        "gpuring_subscription_lost_frames_total",
        "How many frames the subscription has missed, here or on the way from another host.",
        SUBSCRIPTION,
    )
    untaken = _gauge(
        "gpuring_subscription_untaken_frames",
        "How many published frames no member has taken. Of a service: how many calls wait.",
        SUBSCRIPTION,
    )
    oldest = _gauge(
        "gpuring_subscription_oldest_untaken_seconds",
        "For how long the oldest frame that no member has taken has been published. 0: none waits.",
        SUBSCRIPTION,
    )
    members = _gauge(
        "gpuring_subscription_members", "How many consumers share the subscription.", SUBSCRIPTION
    )
    unread = _gauge(
        "gpuring_subscription_unread_seconds",
        "For how long a durable subscription has had no consumer. 0: it has one.",
        SUBSCRIPTION,
    )
    for one in rings:
        for name, sub in _by_label(one).items():
            labels = [one.name, name, "lossless" if sub.lossless else "lossy"]
            lag.add_metric(labels, sub.lag)
            lost.add_metric(labels, sub.lost)
            untaken.add_metric(labels, sub.untaken)
            oldest.add_metric(labels, sub.oldest_s)
            members.add_metric(labels, len(sub.members))
            if sub.durable:
                unread.add_metric(labels, sub.unread_s or 0.0)
    yield from (lag, lost, untaken, oldest, members, unread)


def _peers(rings: Sequence[RingStats]) -> Iterator[Metric]:
    published = _counter(
        "gpuring_frames_published_total", "How many frames a producer has published.", PEER
    )
    acquired = _counter(
        "gpuring_frames_acquired_total", "How many frames a consumer has acquired.", READER
    )
    torn = _counter(
        "gpuring_frames_torn_total",
        "How many torn frames a consumer passed over or got FrameTorn for.",
        READER,
    )
    info = GaugeMetricFamily(
        "gpuring_peer_info", "Always 1: what a peer is called.", labels=(*PEER, "label")
    )
    held = _gauge("gpuring_peer_slots_held", "How many slots a peer has claimed or holds.", PEER)
    oldest = _gauge(
        "gpuring_peer_oldest_hold_seconds",
        "For how long a peer has had its oldest slot. 0: it has none.",
        PEER,
    )
    pending = _gauge(
        "gpuring_peer_gpu_pending_slots",
        "On how many slots a peer's GPU work is not finished.",
        PEER,
    )
    waiting = _gauge(
        "gpuring_peer_waiting",
        "1: the peer waits for a frame, or for a free slot.",
        PEER,
    )
    asked = _gauge(
        "gpuring_engine_asked_seconds",
        "How long ago an engine of a service last asked for calls. No value before it is ready.",
        READER,
    )
    stopped = _gauge("gpuring_peer_stopped", "1: the peer's process is stopped (SIGSTOP).", PEER)
    for one in rings:
        labels = {sub.name: label for label, sub in _by_label(one).items()}
        kinds = whole.kinds if (whole := service(one)) else {}
        presences = [peer for peer, kind in kinds.items() if kind == "presence"]
        for peer in one.peers:
            number = [one.name, str(peer.number)]
            info.add_metric([*number, peer.label], 1)
            if peer.role == "producer":
                published.add_metric(number, peer.frames)
            else:
                reader = [*number, labels.get(peer.subscription or "", "")]
                acquired.add_metric(reader, peer.frames)
                torn.add_metric(reader, peer.torn)
                if peer.asked_s is not None:
                    asked.add_metric(reader, peer.asked_s)
            held.add_metric(number, len(peer.holding))
            oldest.add_metric(number, _oldest_s(peer))
            pending.add_metric(number, peer.pending)
            waiting.add_metric(number, peer.waiting)
            if peer.number not in presences:  # an engine is stopped once
                stopped.add_metric(number, peer.stopped)
    yield from (info, published, acquired, torn, held, oldest, pending, waiting, stopped, asked)


def _stuck(rings: Sequence[RingStats]) -> Iterator[Metric]:
    """What `gpuring why` says.  A chain of waits may begin and end in different rings."""
    stuck = _gauge(
        "gpuring_stuck_seconds",
        "For how long nothing has moved in the waits that end at this peer or subscription, and "
        "begin in the ring `stuck`. No value if nothing is stuck.",
        ("stuck", "reason", "ring", "subscription", "peer", "label"),
    )
    touched = _gauge(
        "gpuring_ring_stuck",
        "1: waits in which nothing has moved touch this ring. No value if none do.",
        RING,
    )
    by_name = {one.name: one for one in rings}
    found = jams(rings, STUCK_S)
    for name in sorted({name for jam in found for name in jam.rings}):
        touched.add_metric([name], 1)
    for jam in found:
        end = jam.culprits[0]
        labels = {sub.name: label for label, sub in _by_label(by_name[end.ring]).items()}
        subscription = labels.get(end.subscription or "", "")
        peer, label = "", ""
        if end.peers:
            peer, label = str(end.peers[0].number), end.peers[0].label
        stuck.add_metric(
            [jam.steps[0].ring, end.reason, end.ring, subscription, peer, label], jam.age_s
        )
    yield from (stuck, touched)


def _by_label(one: RingStats) -> dict[str, SubscriptionStats]:
    """The ring's subscriptions by bounded names: each unnamed one has a random name of its own."""
    named = {}
    for sub in one.subscriptions:
        if not is_unnamed(sub.name):
            named[printable(sub.name)] = sub
        elif sub.members:  # without one it is about to go
            named[f"#{sub.members[0]}"] = sub
    return named


def _oldest_s(peer: PeerStats) -> float:
    return max((hold.age_s for hold in peer.holding), default=0.0)


def _gauge(name: str, documentation: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, labels=labels)


def _counter(name: str, documentation: str, labels: Sequence[str]) -> CounterMetricFamily:
    return CounterMetricFamily(name, documentation, labels=labels)
