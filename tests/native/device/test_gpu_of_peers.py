"""The GPU on which a peer uses the slots is in its entry, in the statistics, and in the tools."""

from __future__ import annotations

import dataclasses
import json
import uuid

import pytest

from gpuring.cli.inspect import describe, gpus
from gpuring.cli.top.rates import Look
from gpuring.cli.top.view import render
from gpuring.errors import DeviceError
from gpuring.registry.survey import collect
from tests.helpers.fake_driver import uuid_of

HERE, THERE = (str(uuid.UUID(bytes=uuid_of(ordinal))) for ordinal in (0, 1))


def look_of(one):
    return Look(0.0, {"r": one}, {}, {"r": "root"})


def test_a_join_notes_the_gpu(rig):
    ring = rig("timeline")
    producer = ring.producer(ring=ring.ring(ordinal=1))
    consumer = ring.consumer()
    seen = collect("r", ring.segment.creator)
    assert seen.gpu == HERE
    assert {peer.number: peer.gpu for peer in seen.peers} == {
        producer.peer: THERE,
        consumer.peer: HERE,
    }
    assert json.loads(json.dumps(dataclasses.asdict(seen)))["peers"][0]["gpu"] == THERE
    assert ring.segment.raw.find(uuid_of(1)) % 128 == 96


def test_the_next_owner_of_a_number_has_its_own(rig):
    ring = rig("timeline")
    first = ring.producer(ring=ring.ring(ordinal=1))
    number = first.peer
    first.close()
    ring.peers.remove(first)
    second = ring.producer()
    assert second.peer == number
    (peer,) = collect("r", ring.segment.creator).peers
    assert peer.gpu == HERE


def test_a_peer_of_a_host_ring_has_no_gpu(segment):
    ring = segment()
    ring.producer()
    seen = collect("r", ring.creator)
    assert (seen.gpu, seen.peers[0].gpu) == (None, None)
    assert "GPU" not in gpus(seen)


def test_the_tools_say_who_is_on_another_gpu(rig):
    ring = rig("timeline")
    elsewhere = ring.ring(ordinal=1)
    ring.producer()
    told = collect("r", ring.segment.creator)
    assert gpus(told) == ""
    assert HERE[:8] not in describe(told)
    assert HERE[:8] not in "".join(line.text for line in render(None, look_of(told), width=80))
    ring.consumer("a", ring=elsewhere)
    ring.consumer("b", ring=elsewhere)
    told = collect("r", ring.segment.creator)
    line = f"its slots are on GPU {HERE[:8]}; peer 0 uses GPU {HERE[:8]}, peers 1 and 2 use GPU"
    assert gpus(told) == f"{line} {THERE[:8]}"
    for text in (
        describe(told, 80),
        "\n".join(line.text for line in render(None, look_of(told), width=80)),
    ):
        assert gpus(told) in " ".join(text.split())
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_a_driver_that_does_not_tell_its_uuid_is_refused(rig, kind):
    ring = rig(kind)
    ring.driver.errors["get_uuid"] = 100
    with pytest.raises(DeviceError, match="does not give the UUID of GPU 1"):
        ring.ring(ordinal=1)
    del ring.driver.errors["get_uuid"]
    ring.producer()
