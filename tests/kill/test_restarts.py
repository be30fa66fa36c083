"""Processes that were killed come back.  Their ring lives on, is replaced, or is removed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import gpuring
from tests.helpers.cameras import OPTIONS, joins_and_publishes, owns_and_publishes
from tests.helpers.commands import gpuring as command
from tests.helpers.commands import running
from tests.helpers.layout import FIELDS
from tests.helpers.processes import poll, up
from tests.helpers.promise import promise
from tests.helpers.rings import publish, segments_of


def guest(pipe, name):
    with gpuring.attach(name, timeout=10) as ring, ring.consumer() as frames:
        pipe.send("joined")
        frames.acquire(10)
        pipe.ask("holds")


def records(pipe, name, last):
    """Goes on reading over restarts.  Sends (value, sequence, restarted) of each frame."""
    with gpuring.attach(name, timeout=10) as ring:
        frames = ring.consumer("recorder", start="oldest", reattach=True)
        for slot in frames:
            value = int(slot.array[0])
            pipe.send((value, slot.seq, slot.restarted))
            if value == last:
                break
        frames.close()


@promise(
    "failure.md",
    "It goes on in the new ring, in whatever form it waits: in a loop, with `acquire`, `latest` "
    "and batches, with `gpuring.select` and `gpuring.align`, in asyncio, and in other event loops "
    "at its `fileno()`.",
    "The first frame of a consumer after a restart has `slot.restarted`.",
    "Sequences start over with a new ring.",
)
@pytest.mark.slow
def test_a_loop_goes_on_over_the_death_of_who_owns_the_ring(name, children):
    """Sequences start over in the new ring."""
    camera = up(children(owns_and_publishes, name, [1, 2]))
    recorder = children(records, name, 4)
    assert [recorder.receive(), recorder.receive()] == [(1, 4, False), (2, 5, False)]
    os.kill(recorder.pid, signal.SIGSTOP)  # it goes on when both frames are there
    camera.kill()
    again = up(children(owns_and_publishes, name, [3, 4]))
    os.kill(recorder.pid, signal.SIGCONT)
    assert [recorder.receive(), recorder.receive()] == [(3, 4, True), (4, 5, False)]
    recorder.result()
    again.finish()


@promise(
    "failure.md",
    "It goes on in the new ring, in whatever form it waits: in a loop, with `acquire`, `latest` "
    "and batches, with `gpuring.select` and `gpuring.align`, in asyncio, and in other event loops "
    "at its `fileno()`.",
)
def test_a_loop_goes_on_over_a_ring_that_replaces_a_living_one(name, children):
    with gpuring.create(name, **OPTIONS) as ring:
        with ring.producer() as producer:
            publish(producer, 1)
        recorder = children(records, name, 3)
        assert recorder.receive() == (1, 4, False)
        with gpuring.create(name, **OPTIONS, replace=True) as second, second.producer() as producer:
            publish(producer, 2, 3)
            assert [recorder.receive(), recorder.receive()] == [(2, 4, True), (3, 5, False)]
            recorder.result()
        assert ring.stats().closed


@promise(
    "failure.md",
    "It gets `RingClosed`, attaches again and calls `ring.producer()`.",
    "It goes on in the new ring, in whatever form it waits: in a loop, with `acquire`, `latest` "
    "and batches, with `gpuring.select` and `gpuring.align`, in asyncio, and in other event loops "
    "at its `fileno()`.",
)
def test_a_loop_goes_on_over_the_death_of_a_producer(name, children):
    with gpuring.create(name, **OPTIONS):
        recorder = children(records, name, 2)
        killed = up(children(joins_and_publishes, name, 1))
        assert recorder.receive() == (1, 4, False)
        killed.kill()
        children(joins_and_publishes, name, 2)
        assert recorder.receive()[::2] == (2, True)
        recorder.result()


def watches(pipe, name, newest, last):
    """A lossy reader.  Sends the values that it gets, until the last one."""
    with (
        gpuring.attach(name) as ring,  # also a ring in which nobody lives
        ring.consumer(lossless=False, start="oldest", reattach=True) as frames,
    ):
        pipe.send("joined")
        for slot in (one for (one,) in gpuring.align([frames])) if newest else frames:
            value = int(slot.array[0])
            pipe.send((value, slot.restarted))
            if value == last:
                return


@promise(
    "failure.md",
    "It goes on in the new ring, in whatever form it waits: in a loop, with `acquire`, `latest` "
    "and batches, with `gpuring.select` and `gpuring.align`, in asyncio, and in other event loops "
    "at its `fileno()`.",
)
@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("between", [True, False])
@pytest.mark.parametrize("newest", [True, False])
def test_a_watcher_goes_on_though_it_has_joined_the_ring_of_the_dead(
    name, children, newest, between
):
    """The watcher may start between the death of the camera and its restart."""
    camera = up(children(owns_and_publishes, name, [1]))
    if between:
        camera.kill()
    watcher = children(watches, name, newest, 4)
    assert watcher.receive() == "joined"
    assert watcher.receive() == (1, False)
    camera.kill()
    again = up(children(owns_and_publishes, name, [4]))
    assert watcher.receive() == (4, True)
    watcher.result()
    again.finish()


def ends(camera, how):
    os.kill(camera.pid, how)
    camera.process.join(20)
    assert camera.process.exitcode == -how


@promise(
    "limits.md", "When the creator is started again, its new ring takes the place of the old one."
)
@promise(
    "failure.md",
    "Start it again with the same call: `create` replaces a ring whose creator is dead.",
    "It reads what is there and gets `EndOfStream`.",
)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_camera_starts_again_though_a_reader_is_still_in_its_ring(name, children, how):
    """The reader, which is lossless and has fallen behind, drains the old ring."""
    camera = up(children(owns_and_publishes, name, [1, 2]))
    with gpuring.attach(name) as old, old.consumer(start="oldest") as frames:
        ends(camera, how)
        again = children(owns_and_publishes, name, [3])
        assert again.receive() == "published"
        assert [int(slot.array[0]) for slot in frames] == [1, 2]
        with (
            gpuring.attach(name) as new,
            new.consumer(start="oldest") as others,
            others.acquire(0) as slot,
        ):
            assert slot.array[0] == 3
        again.finish()


@promise(
    "failure.md",
    "It gets `RingClosed`, attaches again and calls `ring.producer()`.",
    "So if any of several programs may create the ring and the others are to go on with it, pass "
    "`replace=False` and attach after `RingExists`.",
)
def test_a_producer_in_the_ring_of_a_dead_creator_is_closed_out_by_the_next_one(name, children):
    """The creator decides.  With replace=False it goes on with the ring instead."""
    camera = up(children(owns_and_publishes, name, [1]))
    with gpuring.attach(name) as old, old.producer() as producer:
        ends(camera, signal.SIGKILL)
        producer.claim(5).publish()
        with pytest.raises(gpuring.RingExists):
            gpuring.create(name, **OPTIONS, replace=False)
        producer.claim(5).publish()
        with gpuring.create(name, **OPTIONS) as ring:
            with pytest.raises(gpuring.RingClosed):
                producer.claim(5)
            works(ring)


@promise(
    "failure.md",
    "A ring whose creator lives is replaced only by `create(..., replace=True)`, and with "
    "`replace=False` no ring is replaced.",
)
def test_replace_false_refuses_the_ring_of_the_dead_too(name, children):
    camera = up(children(owns_and_publishes, name, [1]))
    with gpuring.attach(name) as ring, ring.consumer():
        camera.kill()
        poll(lambda: ring.stats().reaps == 1)
        before = segments_of(name)
        with pytest.raises(gpuring.RingExists, match=r"\(dead\), 1 living peer\."):
            gpuring.create(name, **OPTIONS, replace=False)
        assert segments_of(name) == before
        assert not ring._header.closed


def of_another_version(name):
    """Makes the ring look like one of an older or a newer gpuring."""
    with Path(f"/dev/shm/gpuring.{name}").open("r+b") as file:
        file.seek(FIELDS["head", "version"].offset)
        file.write(b"\xff")


def damaged(name):
    path = Path(f"/dev/shm/gpuring.{name}")
    with path.open("r+b") as file:
        file.write(os.urandom(path.stat().st_size))


@promise(
    "failure.md",
    "A damaged ring, or one of another version of gpuring, is replaced when no process uses it. "
    "While a process uses it, `create` raises `RingExists`, because that process could not learn "
    "that its ring has ended.",
)
@pytest.mark.parametrize("change", [of_another_version, damaged])
def test_what_cannot_be_read_makes_way_when_nobody_uses_it(name, children, change):
    camera = up(children(owns_and_publishes, name, [1]))
    with gpuring.attach(name):
        camera.kill()
        change(name)
        with pytest.raises(gpuring.RingExists, match="end the processes that use it"):
            gpuring.create(name, **OPTIONS)
    with gpuring.create(name, **OPTIONS) as ring:
        assert len(segments_of(name)) == 2
        works(ring)


def all_killed(name, children):
    """A ring whose creator, producer and reader were killed at once."""
    children_of_ring = [children(owns_and_publishes, name, [1, 2])]
    children_of_ring[0].receive()
    with gpuring.attach(name) as ring:
        children_of_ring.append(children(guest, name))
        assert children_of_ring[1].receive() == "joined"
        with ring.producer() as producer:
            publish(producer, 3)
        assert children_of_ring[1].receive() == "holds"
    for child in children_of_ring:  # this process has left: a member would remove the names
        os.kill(child.pid, signal.SIGKILL)
    for child in children_of_ring:
        child.kill()


def works(ring):
    with ring.producer() as producer, ring.consumer(start="oldest") as frames:
        publish(producer, 7)
        assert frames.acquire(10).array[0] == 7


@promise(
    "failure.md",
    "Nothing is left behind that would keep a later start from working.",
    "Start the programs again, or run `gpuring clean`.",
)
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("replace", [None, True])
def test_after_the_death_of_everybody_a_new_ring_replaces_the_old_one(name, children, replace):
    all_killed(name, children)
    with gpuring.create(name, **OPTIONS, replace=replace) as ring:
        assert len(segments_of(name)) == 2
        works(ring)


@promise(
    "failure.md",
    "Start the programs again, or run `gpuring clean`.",
)
@pytest.mark.slow
def test_after_the_death_of_everybody_clean_removes_the_ring(name, children):
    all_killed(name, children)
    with gpuring.create(f"{name}-alive", **OPTIONS) as alive:
        said = command("clean", name)  # without the name: all rings of this host
        assert said.returncode == 0, said.stderr
        assert segments_of(name) == segments_of(f"{name}-alive")
        works(alive)
    with gpuring.create(name, **OPTIONS) as ring:
        works(ring)


def keeper(name, **more):
    return running(
        "keep", name, *["--slots", "4", "--shape", "4", "--dtype", "i8", "--device", "host"], **more
    )


@promise("limits.md", "`gpuring keep` creates a ring in a process that does nothing else.")
@promise(
    "failure.md",
    "a ring that outlives its producers | `gpuring keep NAME …` creates it",
    "A keeper (`gpuring keep`) that was killed is started again like any other creator.",
)
def test_a_kept_ring_outlives_its_producers_and_a_keeper_that_was_killed_starts_again(
    name, children
):
    """The producers are killed, or leave.  One is still in the ring when the keeper starts again,
    and learns that the ring has ended."""
    with keeper(name) as first:
        with gpuring.attach(name, timeout=20) as ring, ring.consumer() as consumer:
            for value, end in ((1, gpuring.PeerLost), (2, gpuring.EndOfStream)):
                producer = up(children(joins_and_publishes, name, value))
                with consumer.acquire(10) as slot:
                    assert slot.array[0] == value
                if end is gpuring.PeerLost:
                    producer.kill()
                else:
                    producer.finish()
                with pytest.raises(end):
                    consumer.acquire(10)
        ring = gpuring.attach(name)
        producer = ring.producer()
        first.kill()
        first.wait()
    with keeper(name) as second:
        assert second.stdout.readline().startswith(f"keeping {name}")
        with pytest.raises(gpuring.RingClosed):
            producer.claim(0)
        ring.close()
        with gpuring.attach(name) as ring:
            works(ring)
        second.terminate()
        assert second.wait(20) == 0
    with pytest.raises(gpuring.RingNotFound):
        gpuring.attach(name)


def test_the_ring_that_a_consumer_came_from_closes_it_wherever_it_is(name):
    old = gpuring.create(name, **OPTIONS)
    with gpuring.attach(name) as mine:
        frames = mine.consumer("x", reattach=True)
        with old.producer() as producer:
            producer.claim(0).publish()
        loop = iter(frames)
        next(loop)
        with gpuring.create(name, **OPTIONS, replace=True) as new, new.producer() as producer:
            producer.claim(0).publish()
            assert next(loop).restarted
            assert frames.ring is not mine
            mine.close()
            assert frames.closed
            assert frames.ring.closed
            assert new._header.live_peers() == [producer.peer]
    old.close()
