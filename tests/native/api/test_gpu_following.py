"""Rings on GPUs that are replaced: programs in C go on in the next one, on their streams.

The driver is that of test_gpu.py.
"""

from __future__ import annotations

import pytest

from tests.native.api.gpu_rings import (
    MEMORY,
    OF_EACH,
    SHAPE,
    _is_supported,
    attach,
    c,
    create,
    name,
    publishes,
    sees,
)
from tests.native.api.puppet import OLDEST, Puppet, S

__all__ = ["_is_supported", "c", "name"]  # pytest finds the fixtures by it

DEFAULT, CPU = -1, -3


def replace(program: Puppet, name: str, kind: str, sync: str = "auto") -> None:
    """Starts a camera whose ring replaces any other of the name."""
    program("replaces", 2)
    create(program, name, kind, sync)
    program.ok("produce", "-", "-")


def replace_on_host(program: Puppet, name: str) -> None:
    program("replaces", 2)
    program.ok("under", MEMORY["host"], DEFAULT, 0, 0)
    program.ok("create", name, 4, 0o600, *SHAPE)
    program.ok("produce", "-", "-")


def reads(program: Puppet, byte: int, *, restarted: bool) -> None:
    """Reads the next frame on stream 2."""
    got = program.ok("acquire", 0, 20 * S, 0)
    assert (got["meta"], got["restarted"]) == (str(byte), str(int(restarted)))
    sees(program, byte)


@pytest.mark.slow(keep=2)
@OF_EACH
def test_a_consumer_in_c_goes_on_in_the_next_ring_on_its_stream(name, c, kind, sync):
    camera, other, reader = c(), c(), c()
    create(camera, name, kind, sync)
    camera.ok("produce", "-", "-")
    attach(reader, name)
    reader.ok("consume", "rec", OLDEST, "ru")
    reader.ok("stream", 0, 2)
    publishes(camera, 1, 1)
    publishes(camera, 2, 2)
    reads(reader, 1, restarted=False)
    replace(other, name, kind, sync)
    publishes(other, 7, 7)
    reads(reader, 2, restarted=False)  # the rest of the old ring comes first
    reads(reader, 7, restarted=True)
    for _ in range(3):  # two slots of the ring before are open
        reader.ok("use-on", 0, 3)
        reader.ok("release", 0, 1)
    for k in range(8, 14):
        publishes(other, k, k)
        reads(reader, k, restarted=False)
        reader.ok("release", 0, 1)
    for each in (reader, camera, other):
        each.leaves()


@pytest.mark.slow(keep=2)
@OF_EACH
def test_a_producer_in_c_goes_on_in_the_next_ring_on_its_stream(name, c, python, kind, sync):
    program, first, second = c(), python(), python()
    for k, peer in enumerate((first, second)):
        peer("create", name, device="cuda", memory=kind, sync=sync, replace=True)
        peer("consume")
        if k == 0:
            attach(program, name)
            program.ok("produce", "-", "r")
            program.ok("stream", 0, 1)
        assert program.ok("claim", 0, 20 * S, 0)["restarted"] == str(k)
        program.ok("fill", 0, 1, 5 + k)
        program.ok("publish", 0, 1, -1, 5 + k)
        assert peer("acquire")[1] == 5 + k
        assert peer("read") == 5 + k
        peer("release")
    program.leaves()
    first("close")
    second("close")


def test_a_reader_in_c_goes_from_a_gpu_into_host_memory_and_back(name, c):
    reader, on_host, *on_gpu = c(), c(), c(), c()
    create(on_gpu[0], name, "pinned")
    on_gpu[0].ok("produce", "-", "-")
    attach(reader, name)
    reader.ok("consume", "-", OLDEST, "r")
    reader.ok("stream", 0, 2)
    publishes(on_gpu[0], 1, 1)
    reads(reader, 1, restarted=False)
    reader.ok("release", 0, 1)
    replace_on_host(on_host, name)
    on_host.ok("claim", 0, 0, 0)
    on_host.ok("publish", 0, 1, 5, 5)
    got = reader.ok("acquire", 0, 20 * S, 0)
    assert (got["first"], got["restarted"]) == ("5", "1")
    reader.ok("release", 0, 1)
    replace(on_gpu[1], name, "pinned")
    publishes(on_gpu[1], 6, 6)
    reads(reader, 6, restarted=True)
    for each in (reader, on_host, *on_gpu):
        each.leaves()


@pytest.mark.parametrize("kind", ["vmm"])
def test_who_reads_by_the_cpu_does_not_go_on_on_a_gpu(name, c, kind):
    camera, other, reader = c(), c(), c()
    replace_on_host(camera, name)
    reader.ok("under", MEMORY["host"], CPU, 0, 0)
    reader.ok("attach", name, 20 * S)
    reader.ok("consume", "-", OLDEST, "r")
    replace(other, name, kind)
    status, text = reader.refused("acquire", 0, 20 * S, 0)
    assert status == "UNSUPPORTED"
    assert f"memory of a GPU ({kind})" in text
    reader.leaves()


@pytest.mark.parametrize("kind", ["ipc", "vmm"])
def test_a_durable_subscription_outlives_a_ring_on_a_gpu(name, c, kind):
    """A member that joins it in the next ring learns how many frames were lost between."""
    camera, other, reader = c(), c(), c()
    create(camera, name, kind)
    camera.ok("produce", "-", "-")
    attach(reader, name)
    reader.ok("consume", "rec", OLDEST, "u")
    reader.leaves()
    for k in range(3):
        publishes(camera, k, k)
    replace(other, name, kind)
    publishes(other, 7, 7)
    again = c()
    attach(again, name)
    again.ok("consume", "rec", OLDEST, "u")
    assert again.ok("acquire", 0, 20 * S, 0)["lost"] == "3"
    sees(again, 7)
    again.ok("release", 0, 1)
    again.ok("unsubscribe", "rec")
    for each in (again, camera, other):
        each.leaves()
