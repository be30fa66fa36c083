"""What an exporter keeps for an importer that is gone, and for how long."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import gpuring
from gpuring.errors import RingError
from tests.helpers.commands import exporting
from tests.helpers.processes import poll

pytest.importorskip("zmq")

from gpuring import bridge
from gpuring.bridge.exporter.links import Links
from gpuring.bridge.network import wire
from gpuring.cli import main
from tests.bridge.bridge_sides import Far, importer
from tests.bridge.bridges import connected, kill_worker

WAIT_S = 60.0


def welcomed(far: Far, *hello: Any) -> wire.Welcome:
    """The answer to this Hello, which is repeated as long as the exporter refuses for now."""
    while isinstance(answer := far.heard(wire.Welcome, wire.Refuse), wire.Refuse):
        assert answer.again, answer.reason
        far.hello(*hello)
    return answer


def take(far: Far, n: int) -> list[wire.Frame]:
    """Opens the session, and takes so many frames."""
    far.say(7, wire.Open("zmq", 8), wire.Flow(0, tuple(range(1, n + 1))))
    return [far.heard(wire.Frame) for _ in range(n)]


def put(producer: gpuring.Producer, frames: int) -> None:
    for _ in range(frames):
        producer.claim(WAIT_S).publish()


@pytest.fixture
def near(name: str) -> Iterator[gpuring.Ring]:
    with gpuring.create(name, slots=8, shape=4, dtype="i8", device="host") as ring:
        yield ring


def members(near: gpuring.Ring) -> int:
    return len(near.stats().peers) - 1  # not counting the producer


@pytest.mark.slow
def test_an_importer_that_comes_back_while_it_is_given_up_misses_nothing_uncounted(near):
    """The worker has given the subscription up, and the supervisor has not done so yet."""
    with exporting(near.name, "--patience", 0.2) as (run, address), near.producer() as producer:
        with importer(near.name, address) as far:
            far.hello()
            welcomed(far)
            put(producer, 4)
            frames = take(far, 4)
            os.kill(run.pid, signal.SIGSTOP)
            far.say(7, wire.Bye("it was a test", True))
            poll(lambda: members(near) == 1, WAIT_S)
        with importer(near.name, address) as far:
            has = "lossless", near._epoch.hex(), frames[0].seq  # the first one has arrived
            far.hello(*has)
            poll(lambda: far.socket.poll(0) or members(near) == 2, WAIT_S)
            os.kill(run.pid, signal.SIGCONT)
            welcomed(far, *has)
            put(producer, 1)
            (frame,) = take(far, 1)
            assert frame.seq - frame.lost == frames[1].seq


def test_an_importer_that_is_gone_is_given_up_when_its_subscription_is_ended(near, capsys):
    """This happens at once, and not when the patience is over.  An importer that is connected goes
    on."""
    out = bridge.export(near.name, listen="127.0.0.1:0", patience=100 * WAIT_S)
    with out, near.producer() as producer:
        with importer(near.name, out.address) as far:
            far.hello()
            welcomed(far)
            (subscription,) = near.stats().subscriptions
            assert main(["unsubscribe", near.name, subscription.name]) == 0
            assert "ends as soon as its importer is gone" in capsys.readouterr().out
            put(producer, 2)
            assert len(take(far, 2)) == 2
            far.say(7, wire.Bye("it was terminated", True))
            poll(lambda: not near.stats().subscriptions, WAIT_S)
        with importer(near.name, out.address) as far:  # this one has a subscription again
            far.hello()
            welcomed(far)
            far.say(7, wire.Bye("it was terminated", True))
            poll(lambda: not out.stats().links[0].connected, WAIT_S)
            assert near.stats().subscriptions[0].durable
            put(producer, 8)
            assert main(["unsubscribe", near.name, subscription.name]) == 0
            put(producer, 8)
            poll(lambda: not near.stats().subscriptions, WAIT_S)


@pytest.mark.slow
def test_what_an_importer_had_does_not_come_again_though_the_exporters_worker_died(near):
    """The importer is terminated after that, before another frame has come, so the next one makes a
    new ring and has to be told where the last one was."""
    with bridge.export(near.name, listen="127.0.0.1:0") as out, near.producer() as producer:
        with importer(near.name, out.address) as far:
            far.hello()
            welcomed(far)
            put(producer, 4)
            frames = take(far, 4)  # three of them have arrived, and the worker does not know
            kill_worker(out)
        with importer(near.name, out.address) as far:
            has = "lossless", near._epoch.hex(), frames[2].seq
            far.hello(*has)
            welcomed(far, *has)
            far.say(7, wire.Bye("it was terminated", True))
            far.heard(wire.Bye)
            far.hello()
            assert welcomed(far).seq == frames[2].seq
            assert take(far, 1)[0].seq == frames[3].seq


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "replaced"), [("lossy", False), ("lossless", True)])
def test_what_was_lost_after_an_importer_was_terminated_counts_though_the_exporters_worker_died(
    near, policy, replaced
):
    """The next importer makes a new ring, so it does not say how far the last one had come."""
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(bridge.export(near.name, listen="127.0.0.1:0"))
        producer = stack.enter_context(near.producer())
        with importer(near.name, out.address) as far:
            far.hello(policy)
            welcomed(far, policy)
            put(producer, 2)
            frames = take(far, 2)
            far.say(7, wire.Flow(frames[1].seq, ()), wire.Bye("it was terminated", True))
            poll(lambda: not out.stats().links[0].connected, WAIT_S)
        lost = 3
        put(producer, 3 if replaced else 20)
        if replaced:
            near.close()
            ring = gpuring.create(near.name, slots=8, shape=4, dtype="i8", device="host")
            producer = stack.enter_context(stack.enter_context(ring).producer())
        kill_worker(out)
        with importer(near.name, out.address) as far:
            far.hello(policy)
            welcomed(far, policy)
            put(producer, 1)
            (frame,) = take(far, 1)
            if not replaced:
                lost = frame.seq - frames[1].seq - 1
            assert frame.lost == lost > 0


@pytest.mark.slow
def test_losses_count_over_the_rings_of_importers_that_were_terminated(near, far):
    """Each of these rings counts from 0, and those before have lost more, or less."""
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(near.producer())
        out = stack.enter_context(bridge.export(near.name, listen="127.0.0.1:0"))
        where, lossy = f"{out.address}/{near.name}", {"device": "host", "policy": "lossy"}
        into = stack.enter_context(bridge.import_(where, name=far, slots=2, **lossy))
        there = stack.enter_context(gpuring.attach(far, timeout=WAIT_S))
        frames = stack.enter_context(there.consumer(start="oldest", reattach=True))
        poll(lambda: connected(into) and connected(out), WAIT_S)
        put(producer, 1)
        loop = iter(frames)
        seq, restarts = next(loop).origin.seq, 0
        put(producer, 40)  # there is room for one or two of them
        until = seq + 40
        for away in (20, 60, 0):
            while seq < until:
                slot = next(loop)
                seq, restarts = seq + 1 + slot.lost, restarts + slot.restarted
                assert slot.origin.seq == seq
            into.close(again=True)
            put(producer, away)
            until += away
            if away:
                into = stack.enter_context(bridge.import_(where, name=far, slots=16, **lossy))
        assert restarts == 2
        loop.close()


def test_a_ring_that_is_replaced_gives_an_importer_that_is_gone_no_more_time(near):
    up: Any = SimpleNamespace(say=lambda **_: None, log=lambda _: None)
    links = Links(
        {"ring": near.name, "device": None, "owner": None, "patience_s": WAIT_S, "kept": {}}, up
    )
    link = links.make(wire.Hello(near.name, "h/x", "0" * 16, "lossless", "", 0), waited=False)
    links.importer_left(link)
    until = dict(links._gone)
    near.close()
    with gpuring.create(near.name, slots=8, shape=4, dtype="i8", device="host"):
        successor = links.successor_of(link)
        assert successor is not None
        links.move(link, successor)
        (after,) = links
        assert (after.epoch, links._gone) == (successor._epoch.hex(), until)
        links.drop(after)


def test_a_ring_in_host_memory_that_is_exported_with_a_gpu_refuses_its_importers(near):
    """Otherwise each importer would kill its worker, again and again."""
    up: Any = SimpleNamespace(say=lambda **_: None, log=lambda _: None)
    links = Links(
        {"ring": near.name, "device": "cuda:0", "owner": None, "patience_s": WAIT_S, "kept": {}}, up
    )
    hello = wire.Hello(near.name, "h/x", "0" * 16, "lossless", "", 0)
    with pytest.raises(RingError, match="is in host memory: it takes no device"):
        links.make(hello, waited=False)


@pytest.mark.slow
def test_what_was_lost_before_a_ring_in_the_middle_was_replaced_counts_at_the_end(near, far):
    """The ring in the middle is that of a lossy importer which is terminated, and is exported."""
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(near.producer())
        out = stack.enter_context(bridge.export(near.name, listen="127.0.0.1:0"))
        first = {"address": f"{out.address}/{near.name}", "name": far, "policy": "lossy"}
        into = stack.enter_context(bridge.import_(**first, device="host"))
        more = stack.enter_context(bridge.export(far, listen="127.0.0.1:0"))
        last = f"{far}2"
        second = {"address": f"{more.address}/{far}", "name": last, "device": "host"}
        stack.enter_context(bridge.import_(**second))
        there = stack.enter_context(gpuring.attach(last, timeout=WAIT_S))
        frames = stack.enter_context(there.consumer(start="oldest", reattach=True))
        for each in (into, out, more):
            poll(lambda each=each: connected(each), WAIT_S)
        loop, seqs = iter(frames), []
        for n in range(30):
            with producer.claim(WAIT_S) as slot:
                slot.array[...] = n
            seqs.append(slot.seq)
            if n == 0:
                assert next(loop).array[0] == 0
                into.close(again=True)
        stack.enter_context(bridge.import_(**first, device="host"))
        slot = next(loop)
        # Until the exporter has heard that the importer is gone, it may hold slots.  The producer
        # passes them over, and void sequences count.
        assert slot.lost == seqs[slot.array[0]] - seqs[0] - 1 > 0
        loop.close()
