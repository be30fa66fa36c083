"""A forked child may not use CUDA, and does its parent's fences no harm."""

from __future__ import annotations

import os

import pytest

import gpuring


def in_child(act):
    """What `act` returns in a forked child."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = act()
        except BaseException as error:
            answer = repr(error)
        os.write(write, str(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        told = answer.read()
    assert os.waitpid(pid, 0)[1] == 0
    return told


@pytest.mark.parametrize("kind", ["timeline", "event"])
def test_a_forked_child_asks_the_driver_nothing(rig, kind):
    ring = rig(kind)
    producer, consumer, other = ring.producer(), ring.consumer(), ring.consumer("other")
    for _ in range(3):  # many frames to be looked at: more than the list's limit
        producer.claim_many(4, 0).publish()
        for each in (consumer, other):
            each.acquire_many(4, 0).release()
    producer.claim(0).publish()
    held, writing = consumer.acquire(0), producer.claim(0)
    before = [ring.paid(each) for each in (producer, consumer)]
    calls = [
        writing.publish, held.release, lambda: producer.claim(0),
        lambda: other.acquire(0), producer._peer.leave, consumer._peer.leave,
    ]  # fmt: skip

    def act():
        asked = []
        ring.driver.on_call = asked.append
        told = []
        for call in calls:
            try:
                told.append(call())
            except gpuring.RingError as error:
                told.append("fork()" if "fork()" in str(error) else str(error))
        return asked, told

    answer = in_child(act)
    assert answer.startswith("([], "), answer
    assert [ring.paid(each) for each in (producer, consumer)] == before
    writing.publish()
    held.release()
