"""Deaths of processes that use a pinned ring, with copies pending."""

from __future__ import annotations

import pytest

import gpuring
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.gpu.pinned import SLOTS, TAKES_S, WORDS, make, put, words
from tests.gpu.survivor import HELD_S, RECOVERY_S, Killing, my_turn, started, still_healthy
from tests.helpers.arrays import to_host
from tests.helpers.processes import poll, up
from tests.helpers.rings import segments_of

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(300)]

ROUNDS = 10


def upload_and_hang(pipe, name):
    stream, _, latch = my_turn(pipe)
    consumer = gpuring.attach(name, device="cuda", timeout=20).consumer()
    out = library.empty(WORDS)
    pipe.send("joined")
    slot = consumer.acquire(TAKES_S, stream=stream)
    latch.hold(stream)
    slot.upload(out)
    slot.release()
    pipe.ask("released")


def test_a_camera_goes_on_when_a_reader_dies_with_its_upload_pending(name, children):
    tools()
    victims = started(children, ROUNDS, upload_and_hang, name)
    with make(name, slots=1) as ring, ring.producer() as producer:
        for number, victim in enumerate(victims):
            victim.send()
            assert victim.receive() == "joined"
            put(producer)
            assert victim.receive() == "released"
            with pytest.raises(gpuring.RingFull, match="GPU work"):
                producer.claim(0)
            killing = Killing(victim)
            producer.claim(RECOVERY_S).abandon()
            waited_s, _ = killing.waited_s()
            assert waited_s < HELD_S
            victim.kill()
            still_healthy(number)
        assert not ring.stats().subscriptions


def copy_and_hang(pipe, name):
    stream, _, latch = my_turn(pipe)
    producer = gpuring.attach(name, device="cuda", timeout=20).producer()
    frame = library.zeros(WORDS)
    slot = producer.claim(TAKES_S, stream=stream)
    latch.hold(stream)
    slot.copy_from(frame, stream=stream)
    slot.publish()
    pipe.ask("published")


def test_readers_of_both_kinds_are_told_of_a_copy_that_was_cut_off(name, children):
    tools()
    victims = started(children, ROUNDS, copy_and_hang, name)
    stream = library.new_stream()
    with make(name, device="cuda") as ring, gpuring.attach(name) as by_cpu:
        for number, victim in enumerate(victims):
            with ring.consumer() as on_gpu, by_cpu.consumer() as on_cpu:
                victim.send()
                assert victim.receive() == "published"
                slot = on_gpu.acquire(TAKES_S, stream=stream)
                with pytest.raises(gpuring.RingTimeout, match="GPU work"):
                    on_cpu.acquire(0)
                Killing(victim)
                with pytest.raises(gpuring.PeerLost):  # the torn frame is passed over
                    on_cpu.acquire(RECOVERY_S)
                poll(lambda: library.done(stream), RECOVERY_S)
                with pytest.raises(gpuring.FrameTorn):
                    slot.check()
                with pytest.raises(gpuring.FrameTorn):
                    slot.release()
            assert ring.stats().deaths[0].torn == 1
            victim.kill()
            still_healthy(number)


def create_and_put(pipe, name):
    ring = make(name)
    producer = ring.producer()
    put(producer, SLOTS)
    pipe.ask()


def uploads_the_rest(name):
    with gpuring.attach(name, device="cuda") as ring, ring.consumer(start="oldest") as consumer:
        for _ in range(SLOTS - 1):
            with consumer.acquire(0) as slot:
                upload = slot.upload()
            assert (to_host(upload) == words(slot.seq)).all()
        with pytest.raises(gpuring.PeerLost):
            consumer.acquire(0)


def test_gpus_join_after_the_death_of_a_camera(name, children):
    tools()
    source = up(children(create_and_put, name))
    with gpuring.attach(name) as first:
        source.kill()
        uploads_the_rest(name)
        assert first.stats().deaths[0].pid == source.pid
    assert segments_of(name) == []
