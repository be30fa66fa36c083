"""Processes of rings and services, each of which does one thing until it is ended.

Its first argument is the pipe to the test, where it says that it has begun.  `up` waits for that.
"""

from __future__ import annotations

import time

import gpuring
from tests.helpers.processes import Pipe
from tests.helpers.rings import put, small_ring
from tests.service import services
from tests.service.parts import part


def camera(pipe: Pipe, name: str) -> None:
    with gpuring.attach(name) as ring, ring.producer(label="camera") as producer:
        pipe.send()
        while True:
            producer.claim().publish()


def camera_with_a_reader(pipe: Pipe, name: str) -> None:
    with gpuring.attach(name) as ring, ring.consumer("own"):
        camera(pipe, name)


def creator(pipe: Pipe, name: str) -> None:
    with small_ring(name) as ring, ring.producer(label="camera") as producer:
        put(producer, 3)
        pipe.ask()


def creator_with_two_readers(pipe: Pipe, name: str) -> None:
    """A lossy reader that lost 2 frames and holds one, a lossless one that has read nothing."""
    with small_ring(name) as ring, ring.producer() as producer:
        viewer = ring.consumer("viewer", lossless=False)
        for _ in range(6):
            producer.claim(0).publish()
        assert viewer.acquire(0).lost == 2
        slow = ring.consumer("slow", start="oldest")
        pipe.ask((viewer.peer, ring.stats()))
        slow.close()
        viewer.close()


def reader(pipe: Pipe, name: str, subscription: str) -> None:
    with gpuring.attach(name) as ring, ring.consumer(subscription, label=subscription) as frames:
        pipe.send()
        for _ in frames:
            pass


def stage(pipe: Pipe, name: str, subscription: str, onto: str) -> None:
    """Reads frames of one ring, and publishes each in another one."""
    with (
        gpuring.attach(name) as ring,
        gpuring.attach(onto) as following,
        ring.consumer(subscription, label=subscription) as frames,
        following.producer(label=subscription) as producer,
    ):
        pipe.send()
        for slot in frames:
            with producer.claim() as copy:
                copy.copy_from(slot.array)


def reads_on(pipe: Pipe, name: str, subscription: str) -> None:
    with (
        gpuring.attach(name) as ring,
        ring.consumer(subscription, label=subscription, reattach=True) as frames,
    ):
        pipe.send()
        for _ in frames:
            pass


def selects(pipe: Pipe, name: str, other: str) -> None:
    """Waits for frames of two rings at once, and for the next rings of their names."""
    with (
        gpuring.attach(name) as ring,
        gpuring.attach(other) as another,
        ring.consumer(label="both", reattach=True) as here,
        another.consumer(label="both", reattach=True) as there,
    ):
        pipe.send()
        while True:
            for frames in gpuring.select([here, there]):
                frames.acquire(0).release()


def keeper(pipe: Pipe, name: str, subscription: str) -> None:
    """Keeps a slot, and goes on reading."""
    with gpuring.attach(name) as ring, ring.consumer(subscription, label=subscription) as frames:
        pipe.send()
        kept = frames.acquire()
        while True:
            frames.acquire().release()
        del kept


def holder(pipe: Pipe, name: str, subscription: str) -> None:
    """Holds a frame, and does nothing more in the ring."""
    with gpuring.attach(name) as ring, ring.consumer(subscription, label=subscription) as frames:
        pipe.send()
        with frames.acquire():
            pipe.receive()


def busy(pipe: Pipe, name: str, subscription: str) -> None:
    """Joins and reads nothing, as a program that computes or stands at a breakpoint."""
    with gpuring.attach(name) as ring, ring.consumer(subscription, label=subscription):
        pipe.send()
        while not pipe.told():
            pass


def writer(pipe: Pipe, name: str) -> None:
    """Publishes, then claims and never publishes."""
    with gpuring.attach(name) as ring, ring.producer(label="camera") as producer:
        put(producer, 3)
        with producer.claim():
            pipe.ask()


def imports(pipe: Pipe, address: str, name: str) -> None:
    from gpuring import bridge

    with bridge.import_(address, name=name, slots=4, device="host"):
        pipe.receive()


def asks(pipe: Pipe, name: str) -> None:
    with gpuring.connect(name, timeout=10, label="client") as client:
        pipe.send()
        services.send(client, 0).result()


def is_connected(pipe: Pipe, name: str) -> None:
    with gpuring.connect(name, timeout=10, label="client"):
        pipe.ask("up")


def asks_for_parts(pipe: Pipe, name: str) -> None:
    """Asks for an answer in parts, and does not read them."""
    with gpuring.connect(name, timeout=10, parts=2, label="client") as client:
        call = services.send(client, 0)
        pipe.ask()
        del call


def tries_to_answer(pipe: Pipe, name: str) -> None:
    """Answers one call in parts, and sleeps while its client has no room for the next one."""
    with gpuring.serve(name, label="engine") as server:
        pipe.send()
        (call,) = server.take(1)
        while True:
            try:
                part(call, 0, 0)
            except gpuring.RingFull:
                time.sleep(0.01)


def answers_in_parts(pipe: Pipe, name: str) -> None:
    with services.serve(name, label="engine") as server:
        pipe.send()
        (call,) = server.take()
        while True:
            part(call, 0, None)
