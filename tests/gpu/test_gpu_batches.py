"""Batches are ordered as single frames are: by latches, by stamps, and when somebody is killed.

As in test_gpu_order.py a latch holds one process's stream, and what is ordered behind it must not
be done before it is opened; with `order=False` the order is taken away, and the test must notice.
Streams are made current, so that a timeline records a batch by one call.
"""

from __future__ import annotations

import contextlib
import random
import threading

import pytest
from support import ON_GPU, STREAM_GATED, poll
from test_gpu_death import HELD_S, RECOVERY_S, SAFE, _ring_is_whole, _still_healthy

import gpuring

pytestmark = pytest.mark.gpu
WORDS = 1 << 16
BATCH = 3
LIMIT_S = 40
STAMPED_FRAMES = 20_000
ROUNDS = 5


@pytest.fixture(params=STREAM_GATED, ids=lambda place: place.name)
def gated(request):
    return request.param


@pytest.fixture(params=SAFE)
def safe(request):
    return SAFE[request.param]


def _tools():
    import cupy
    import kernels

    kernels.warm_up()
    return cupy, kernels


def _done(cupy, stream):
    return cupy.cuda.runtime.streamQuery(stream.ptr) == 0


def _killed_and_reaped(ring, child):
    header, reaps = ring._header, ring._header.reaps
    child.kill()
    poll(lambda: header.reap() or header.reaps > reaps)
    header.reap()  # whoever was at it has finished


def _unordered(ring):
    """The mutant: nothing waits."""
    ring._sync.disarm()
    ring._sync.order = lambda *_: True


# ---- the consumer behind a held producer ---------------------------------------------------------


def read_batch(pipe, name, order):
    """Acquires a batch and enqueues checks of it; says whether they ran before the latch opened."""
    cupy, kernels = _tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    wrong = kernels.counter()
    with gpuring.attach(name, timeout=20) as ring, ring.consumer("c") as consumer, stream:
        if not order:
            _unordered(ring)
        pipe.send("joined")
        pipe.receive()  # all are published
        batch = consumer.acquire_many(BATCH, 30)
        assert len(batch) == BATCH
        for slot in batch:
            kernels.check(slot.array, slot.seq, wrong, stream)
        if not order:
            stream.synchronize()
        pipe.send(_done(cupy, stream))
        pipe.receive()  # the latch was opened
        batch.release()
        stream.synchronize()
        return int(wrong.get(stream=stream)[0])


def _hold_a_publish(gated, name, children, order, held):
    """`held`: the slot of the batch from which on the producer's work stands behind the latch."""
    cupy, kernels = _tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with (
        gated.create(name, slots=4, shape=(WORDS,), dtype="u8") as ring,
        ring.producer() as producer,
    ):
        child = children(read_batch, name, order)
        assert child.receive() == "joined"
        with kernels.Latch(limit_s=LIMIT_S) as latch:
            with stream, producer.claim_many(BATCH, 10) as batch:
                assert len(batch) == BATCH
                for k, slot in enumerate(batch):
                    if k == held:
                        latch.hold(stream)
                    kernels.stamp(slot.array, slot.seq, stream)
            child.send()
            ran_early = child.receive()
            still_held = not _done(cupy, stream)
            latch.open()
        child.send()
        wrong = child.result()
        assert still_held
        assert not latch.expired
        stream.synchronize()
    return ran_early, wrong


@pytest.mark.parametrize("held", [0, BATCH - 1])
def test_work_on_an_acquired_batch_stays_behind_a_held_producer(gated, name, children, held):
    """All its work, also that on the last slot alone."""
    assert _hold_a_publish(gated, name, children, True, held) == (False, 0)


@pytest.mark.parametrize("held", [0, BATCH - 1])
def test_a_missing_wait_of_an_acquired_batch_is_seen(gated, name, children, held):
    ran_early, wrong = _hold_a_publish(gated, name, children, False, held)
    assert ran_early
    assert wrong > 0


# ---- the producer behind a held consumer -------------------------------------------------------


def read_held(pipe, name, held):
    """Reads a batch late: from one of its frames on the checks stand behind a latch."""
    cupy, kernels = _tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    wrong = kernels.counter()
    with gpuring.attach(name, timeout=20) as ring, ring.consumer("c") as consumer:
        with kernels.Latch(limit_s=LIMIT_S) as latch, stream:
            pipe.send("joined")
            pipe.receive()  # all are published
            with consumer.acquire_many(BATCH, 30) as batch:
                assert len(batch) == BATCH
                for k, slot in enumerate(batch):
                    if k == held:
                        latch.hold(stream)
                    kernels.check(slot.array, slot.seq, wrong, stream)
            pipe.send("released")
            pipe.receive()  # the producer has enqueued its overwrites
            latch.open()
            stream.synchronize()
        assert not latch.expired
        return int(wrong.get(stream=stream)[0])


def _hold_a_release(gated, name, children, order, held):
    cupy, kernels = _tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with (
        gated.create(name, slots=BATCH, shape=(WORDS,), dtype="u8") as ring,
        ring.producer() as producer,
        stream,
    ):
        child = children(read_held, name, held)
        assert child.receive() == "joined"
        with producer.claim_many(BATCH, 10) as batch:
            for slot in batch:
                kernels.stamp(slot.array, slot.seq, stream)
        child.send()
        assert child.receive() == "released"
        if not order:
            _unordered(ring)
        with producer.claim_many(BATCH, 10) as batch:  # the same slots: the host may go on
            assert len(batch) == BATCH
            for slot in batch:
                kernels.stamp(slot.array, slot.seq, stream)
        if not order:
            stream.synchronize()
        early = _done(cupy, stream)
        child.send()
        wrong = child.result()
        stream.synchronize()
    return early, wrong


@pytest.mark.parametrize("held", [0, BATCH - 1])
def test_writes_to_a_claimed_batch_stay_behind_a_held_consumer(gated, name, children, held):
    assert _hold_a_release(gated, name, children, True, held) == (False, 0)


@pytest.mark.parametrize("held", [0, BATCH - 1])
def test_a_missing_wait_of_a_claimed_batch_is_seen(gated, name, children, held):
    early, wrong = _hold_a_release(gated, name, children, False, held)
    assert early
    assert wrong > 0


# ---- host gate ---------------------------------------------------------------------------------


def read_gated(pipe, name):
    """What is acquired while the GPU has finished one frame of three, and afterwards."""
    _, kernels = _tools()
    wrong = kernels.counter()
    with gpuring.attach(name, timeout=20) as ring, ring.consumer("c") as consumer:
        pipe.send("joined")
        pipe.receive()  # one is done, and the work on the others is held
        with consumer.acquire_many(BATCH, 20) as batch:
            seqs = [slot.seq for slot in batch]
            kernels.check(batch[0].array, batch[0].seq, wrong, None)
        try:
            consumer.acquire_many(BATCH, 0.2)
            said = "acquired"
        except gpuring.RingTimeout as error:
            said = str(error)
        pipe.send((seqs, said))
        pipe.receive()  # the latch was opened
        while len(seqs) < BATCH:
            with consumer.acquire_many(BATCH, 20) as batch:
                for slot in batch:
                    seqs.append(slot.seq)
                    kernels.check(slot.array, slot.seq, wrong, None)
        return seqs, int(wrong.get()[0])


@pytest.mark.parametrize("sync", ["timeline", "event"])
def test_with_the_host_gate_a_batch_ends_before_what_the_gpu_has_not_done(sync, name, children):
    cupy, kernels = _tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    with (
        gpuring.create(name, slots=4, shape=(WORDS,), dtype="u8", sync=sync, gate="host") as ring,
        ring.producer() as producer,
    ):
        child = children(read_gated, name)
        assert child.receive() == "joined"
        with kernels.Latch(limit_s=LIMIT_S) as latch:
            with stream, producer.claim_many(BATCH, 10) as batch:
                kernels.stamp(batch[0].array, batch[0].seq, stream)
                batch[0].publish()
                stream.synchronize()
                latch.hold(stream)
                for slot in batch[1:]:
                    kernels.stamp(slot.array, slot.seq, stream)
            child.send()
            seqs, said = child.receive()
            latch.open()
        child.send()
        assert seqs == [4]
        assert "GPU work" in said
        assert child.result() == ([4, 5, 6], 0)
        assert not latch.expired
        stream.synchronize()


# ---- a consumer that changes streams (G12) -----------------------------------------------------


def publish_and_die(pipe, name):
    """Its second frame stands behind the reader of the first."""
    cupy, kernels = _tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    producer = gpuring.attach(name, timeout=20).producer()
    with stream:
        for _ in range(2):
            with producer.claim(30) as slot:
                kernels.stamp(slot.array, slot.seq, stream)
            pipe.send("published")
            pipe.receive()


def _change_streams(name, children, own):
    """A consumer reads lap 1 on one stream, behind a latch, and lap 2 on another; its producer
    dies, so that only its own fence is left in the way.

    Whether the second stream ran early, and what its fence was when the first was done."""
    cupy, kernels = _tools()
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    wrong = kernels.counter()
    with gpuring.create(name, slots=1, shape=(WORDS,), dtype="u8", sync="timeline") as ring:
        header, consumer = ring._header, ring.consumer()
        if not own:
            ring._sync.disarm()
            order = ring._sync.order
            ring._sync.order = lambda peer, stream, owner, *rest: (
                owner == peer.number or order(peer, stream, owner, *rest)
            )
        child = children(publish_and_die, name)
        assert child.receive() == "published"
        with kernels.Latch(limit_s=LIMIT_S) as latch:
            with first, consumer.acquire(30) as slot:
                latch.hold(first)
                kernels.check(slot.array, slot.seq, wrong, first)
            before = header.work(consumer.peer, 0)
            child.send()
            assert child.receive() == "published"
            with second:
                slot = consumer.acquire(30)
                kernels.check(slot.array, slot.seq, wrong, second)
                _killed_and_reaped(ring, child)
                with pytest.raises(gpuring.FrameTorn):
                    slot.release()
            if not own:
                second.synchronize()
            early = _done(cupy, second)
            latch.open()
            first.synchronize()
            after_first = header.fence(consumer.peer, 0)
            second.synchronize()
        assert not latch.expired
        promised = header.work(consumer.peer, 0)
        assert before < promised
        at_last = header.fence(consumer.peer, 0)
        header.raise_fence(consumer.peer, 0, promised)  # the mutant's is never paid
        with contextlib.suppress(gpuring.FrameTorn):  # frame 1, if it was not written when released
            consumer.close()
    return early, after_first >= before, at_last == promised


def test_a_consumer_that_changes_streams_keeps_its_order_and_its_fence_rises(name, children):
    assert _change_streams(name, children, own=True) == (False, True, True)


def test_a_missing_wait_for_ones_own_fence_is_seen(name, children):
    """The fence of lap 2 is overwritten by that of lap 1."""
    assert _change_streams(name, children, own=False) == (True, True, False)


# ---- stamps ------------------------------------------------------------------------------------


def count_wrong(pipe, name, seed):
    """Checks every frame, in batches of random length on two streams in turns."""
    cupy, kernels = _tools()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    chosen, wrong = random.Random(seed), kernels.counter()
    frames, seqs_rise, last = 0, True, 0
    with gpuring.attach(name, timeout=20) as ring, ring.consumer() as consumer:
        pipe.send("joined")
        while True:
            with chosen.choice(streams) as stream:
                try:
                    batch = consumer.acquire_many(chosen.randint(1, 8), 60)
                except gpuring.EndOfStream:
                    break
                with batch:
                    for slot in batch:
                        kernels.check(slot.array, slot.seq, wrong, stream)
                        seqs_rise, last = seqs_rise and slot.seq > last, slot.seq
                    frames += len(batch)
        for stream in streams:
            stream.synchronize()
    return frames, seqs_rise, int(wrong.get()[0])


@pytest.mark.parametrize("place", ON_GPU, ids=lambda place: place.name)
def test_no_frame_of_a_batch_is_torn(place, name, children):
    cupy, kernels = _tools()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    chosen = random.Random(1)
    with place.create(name, slots=8, shape=(2048,), dtype="u8") as ring:
        child = children(count_wrong, name, 2)
        assert child.receive() == "joined"
        with ring.producer() as producer:
            published = 0
            while published < STAMPED_FRAMES:
                wanted = min(chosen.randint(1, 8), STAMPED_FRAMES - published)
                with chosen.choice(streams) as stream, producer.claim_many(wanted, 60) as batch:
                    for slot in batch:
                        kernels.stamp(slot.array, slot.seq, stream)
                published += len(batch)
        assert child.result() == (STAMPED_FRAMES, True, 0)


# ---- death -------------------------------------------------------------------------------------


def _ready(children, target, name):
    """ROUNDS children that are up: each has a CUDA context already."""
    victims = [children(target, name) for _ in range(ROUNDS)]
    for victim in victims:
        assert victim.receive() == "up"
    return victims


def claim_and_hang(pipe, name):
    """Claims three slots, enqueues its writes behind a latch, and publishes one of them."""
    cupy, kernels = _tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    pipe.send("up")
    pipe.receive()
    latch = kernels.Latch(limit_s=HELD_S)
    producer = gpuring.attach(name, timeout=20).producer(gate="stream")
    with stream:
        batch = producer.claim_many(BATCH, 10)
        latch.hold(stream)
        for slot in batch:
            kernels.stamp(slot.array, slot.seq, stream)
        batch[0].publish()
    pipe.send([slot.seq for slot in batch])
    pipe.receive()


@pytest.mark.deadline(400)
def test_a_producer_dies_with_a_claimed_batch(safe, name, children):
    cupy, _ = _tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    victims = _ready(children, claim_and_hang, name)
    with gpuring.create(name, slots=4, shape=(WORDS,), dtype="u8", **safe) as ring:
        for number, victim in enumerate(victims):
            with ring.consumer() as consumer, stream:
                victim.send()
                seqs = victim.receive()
                assert len(seqs) == BATCH
                if ring.gate == "stream":
                    batch = consumer.acquire_many(BATCH, 10)
                    assert [slot.seq for slot in batch] == seqs[:1]
                    assert not _done(cupy, stream), "nothing to wait for"
                    victim.process.kill()
                    poll(lambda: _done(cupy, stream), RECOVERY_S)
                    with pytest.raises(gpuring.FrameTorn) as caught:
                        batch.release()
                    assert caught.value.seqs == (seqs[0],)
                else:
                    threading.Timer(0.02, victim.process.kill).start()
                with pytest.raises(gpuring.PeerLost):  # torn or void: passed over
                    consumer.acquire_many(BATCH, RECOVERY_S)
                death = ring.stats().deaths[0]
                assert (death.pid, death.torn, death.voided) == (victim.pid, 1, BATCH - 1)
            victim.kill()
            stream.synchronize()
            _still_healthy(cupy, number)
        _ring_is_whole(cupy, ring)


def hold_batch(pipe, name):
    """Holds three frames, its reads behind a latch."""
    cupy, kernels = _tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    wrong = kernels.counter()
    pipe.send("up")
    pipe.receive()
    latch = kernels.Latch(limit_s=HELD_S)
    consumer = gpuring.attach(name, timeout=20).consumer("shared")
    pipe.send("joined")
    pipe.receive()  # all are published
    with stream:
        batch = []
        while len(batch) < BATCH:  # with the host gate perhaps not at once
            batch += consumer.acquire_many(BATCH - len(batch), 20)
        latch.hold(stream)
        for slot in batch:
            kernels.check(slot.array, slot.seq, wrong, stream)
    pipe.send([slot.seq for slot in batch])
    pipe.receive()


@pytest.mark.deadline(400)
def test_a_consumer_dies_holding_a_batch_and_its_fellow_gets_the_frames(safe, name, children):
    cupy, kernels = _tools()
    wrong = kernels.counter()
    victims = _ready(children, hold_batch, name)
    with (
        gpuring.create(name, slots=4, shape=(WORDS,), dtype="u8", **safe) as ring,
        ring.producer() as producer,
        ring.consumer("shared") as fellow,
    ):
        for number, victim in enumerate(victims):
            victim.send()
            assert victim.receive() == "joined"
            sent = []
            while len(sent) < BATCH:
                with producer.claim_many(BATCH - len(sent), 10) as batch:
                    for slot in batch:
                        kernels.stamp(slot.array, slot.seq, None)
                        sent.append(slot.seq)
            victim.send()
            assert victim.receive() == sent
            victim.process.kill()
            got = []
            while len(got) < BATCH:
                with fellow.acquire_many(BATCH, RECOVERY_S) as batch:
                    for slot in batch:
                        assert slot.redelivered
                        kernels.check(slot.array, slot.seq, wrong, None)
                        got.append(slot.seq)
            assert got == sent
            victim.kill()
            _still_healthy(cupy, number)
        assert int(wrong.get()[0]) == 0


def release_and_hang(pipe, name):
    """Releases three frames while its reads stand behind a latch."""
    cupy, kernels = _tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    wrong = kernels.counter()
    pipe.send("up")
    pipe.receive()
    latch = kernels.Latch(limit_s=HELD_S)
    consumer = gpuring.attach(name, timeout=20).consumer()
    pipe.send("joined")
    pipe.receive()  # all are published
    with stream:
        batches = [consumer.acquire_many(BATCH, 20)]
        while (missing := BATCH - sum(map(len, batches))) > 0:  # with the host gate
            batches.append(consumer.acquire_many(missing, 20))
        latch.hold(stream)
        for batch in batches:
            for slot in batch:
                kernels.check(slot.array, slot.seq, wrong, stream)
            batch.release()
    pipe.send("released")
    pipe.receive()


@pytest.mark.deadline(400)
def test_a_consumer_dies_whose_batch_the_gpu_still_reads(safe, name, children):
    cupy, kernels = _tools()
    stream = cupy.cuda.Stream(non_blocking=True)
    victims = _ready(children, release_and_hang, name)
    with (
        gpuring.create(name, slots=BATCH, shape=(WORDS,), dtype="u8", **safe) as ring,
        ring.producer() as producer,
        stream,
    ):
        for number, victim in enumerate(victims):
            reaps = ring._header.reaps
            victim.send()
            assert victim.receive() == "joined"
            sent = 0
            while sent < BATCH:
                with producer.claim_many(BATCH - sent, 10) as batch:
                    for slot in batch:
                        kernels.stamp(slot.array, slot.seq, stream)
                    sent += len(batch)
            victim.send()
            assert victim.receive() == "released"
            if ring.gate == "stream":
                batch = producer.claim_many(BATCH, 10)
                assert len(batch) == BATCH
                assert not _done(cupy, stream), "nothing to wait for"
                victim.process.kill()
                poll(lambda: _done(cupy, stream), RECOVERY_S)
            else:
                threading.Timer(0.02, victim.process.kill).start()
                batch = producer.claim_many(BATCH, RECOVERY_S)
            batch.abandon()
            victim.kill()
            stream.synchronize()
            poll(lambda reaps=reaps: ring._header.reaps > reaps)
            ring._header.reap()  # whoever was at it has finished: no fence is open
            _still_healthy(cupy, number)
        assert not ring.stats().subscriptions
        _ring_is_whole(cupy, ring)
