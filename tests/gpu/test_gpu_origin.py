"""Frames from another host, and which GPU a peer uses, on a real GPU."""

from __future__ import annotations

import uuid

import pytest

import gpuring
from gpuring.cli.inspect import gpus
from gpuring.native import Driver
from gpuring.ring import inner
from tests.helpers.arrays import array_of, assign
from tests.helpers.rings import create_far

pytestmark = pytest.mark.gpu
OPTIONS = {"slots": 4, "shape": 1024, "dtype": "u1"}


def uuid_of(device):
    return str(uuid.UUID(bytes=Driver().uuid(device)))


@pytest.mark.parametrize("memory", ["ipc", "vmm"])
def test_a_frame_on_a_gpu_says_where_it_comes_from(name, memory):
    origin = {"host": "camera-host", "ring": "cam0"}
    with (
        create_far(name, origin, **OPTIONS, device="cuda:0", memory=memory) as ring,
        ring.producer() as producer,
        ring.consumer() as frames,
    ):
        inner.set_link(ring, b"n" * 16, 6, 0)
        for seq, lost in ((7, 1), (9, 3)):
            with producer.claim(20) as slot:
                assign(array_of(slot), seq)
                slot._set_origin(seq, 1000 + seq, lost)
        assert inner.link(ring) == (b"n" * 16, 9, 3)
        for seq, lost in ((7, 0), (9, 2)):
            with frames.acquire(20) as read:
                assert read.origin == (seq, "camera-host", "cam0", 1000 + seq)
                assert read.lost == lost
                assert int(array_of(read)[0]) == seq


def test_each_peer_says_which_gpu_it_uses(name):
    with (
        gpuring.create(name, **OPTIONS, device="cuda:0") as ring,
        ring.producer(),
        ring.consumer(),
    ):
        seen = ring.stats()
        assert seen.gpu == uuid_of(0)
        assert [peer.gpu for peer in seen.peers] == [uuid_of(0)] * 2
        assert gpus(seen) == ""
