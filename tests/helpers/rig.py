"""A ring whose peers are "processes" (segment.py), each with a device order over one fake driver.

The fixture `rig` makes it.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from gpuring import slot_layout
from gpuring.native import Device
from gpuring.ring.consumer import Consumer
from gpuring.ring.producer import Producer
from tests.helpers import raw_verbs
from tests.helpers.fake_driver import C, Driver, P, uuid_of


class Rig:
    """A ring with a fake driver; each peer is a process of its own."""

    def __init__(self, segment, kind, **options):
        placed = {"memory": "ipc", "sync": kind, "device_uuid": uuid_of(0)}
        if kind == "pinned":
            placed = {"memory": "pinned", "sync": "timeline"}
        self.kind, self.segment = kind, segment(**placed | options)
        self.driver = Driver(self.segment)
        self.told, self.finish = self.driver.told, self.driver.finish
        self.peers, self.devices = [], []

    def ring(self, stream=0, capsule=None, driver=None, ordinal=0):
        """One more process.  `stream` is its current stream, and `ordinal` its GPU.

        Events made by another `driver` over the same functions are another process's."""
        header = self.segment.process()
        current = SimpleNamespace(ptr=stream)
        device = Device(header, ordinal, lambda: current, capsule, driver or self.driver.table)
        self.devices.append(device)
        return self._ring_of(header, device, current)

    def by_cpu(self):
        """One more process, which uses a pinned ring without a GPU."""
        return self._ring_of(self.segment.process(), None, None)

    def _ring_of(self, header, device, current):
        ordinal = None if device is None else device.ordinal
        memory = SimpleNamespace(array=lambda *_, **__: np.zeros(8, "u1"), device=ordinal)
        return SimpleNamespace(
            name="ring", slots=header.slots, spec=slot_layout.make(shape=8, dtype="u1"),
            _header=header, _device=device, _memory=memory,
            _endpoints={}, _forget=lambda _: None, current=current, _whole=None,
        )  # fmt: skip

    def _joined(self, endpoint):
        self.driver.meet(endpoint)
        self.peers.append(endpoint)
        return endpoint

    def producer(self, stream=P, gate="stream", capsule=None, kind=Producer, ring=None):
        ring = ring or self.ring(stream, capsule)
        peer = raw_verbs.join_producer(ring._header, ring._device, gate == "host")
        return self._joined(kind(ring, peer))

    def consumer(self, name="x", stream=C, gate="stream", lossless=True, kind=Consumer, ring=None):
        ring = ring or self.ring(stream)
        peer = raw_verbs.join_consumer(
            ring._header, name.encode(), lossless, "next", True, ring._device, gate == "host"
        )
        return self._joined(kind(ring, peer, lossless))

    def kill(self, endpoint):
        """The peer's process dies: its locks are dropped, and there is no such process any more."""
        self.segment.poke("peer", "start", 1, endpoint.peer)
        endpoint._ring._header.disown()
        self.segment.creator.reap()
        assert endpoint.peer not in self.segment.creator.live_peers()
        self.peers.remove(endpoint)

    def work(self, endpoint, *slots):
        """The values that the peer has promised: {(peer, slot): value}."""
        number = endpoint.peer
        return {
            (number, slot): raw_verbs.work(self.segment.creator, number, slot) for slot in slots
        }

    def paid(self, endpoint):
        header = self.segment.creator
        return all(
            raw_verbs.fence(header, endpoint.peer, slot)
            == raw_verbs.work(header, endpoint.peer, slot)
            for slot in range(self.segment.slots)
        )

    def lap(self, producer, *consumers, slots=None):
        """Publishes every slot once.  Everybody reads them.  The driver's calls are forgotten."""
        slots = slots or self.segment.slots
        producer.claim_many(slots, 0).publish()
        for consumer in consumers:
            consumer.acquire_many(slots, 0).release()
        self.told()


def held_by(*endpoints):
    return [seq for each in endpoints for _, seq in each._peer.holding()]
