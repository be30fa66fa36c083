"""Rings by name: create, attach, replace, ls, unlink, clean; other processes, pickles, forks."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import warnings
from pathlib import Path

import pytest
from support import Pipe, Place

import gpuring
from gpuring import directory
from gpuring import segment as segments

OPTIONS = {"slots": 2, "shape": 4, "dtype": "u1"}


def segments_of(name: str) -> list[Path]:
    return sorted(Path("/dev/shm").glob(f"gpuring.{name}*"))


def cleaned(name: str) -> list[str]:
    """What clean() removed of this test's; others may have rings on this host too."""
    return sorted(removed for removed in gpuring.clean() if name in removed)


def owner(pipe: Pipe, place: Place, name: str) -> None:
    """Creates a ring, says so, and keeps it until it is killed or told to end."""
    with place.create(name, **OPTIONS) as ring, ring.producer():
        pipe.send(os.getpid())
        pipe.receive()


def reader(pipe: Pipe, ring: gpuring.Ring | str, place: Place) -> list[int]:
    """Reads everything; gets the ring pickled, or by name."""
    if isinstance(ring, str):
        ring = gpuring.attach(ring, timeout=20)
    with ring, ring.consumer("all") as frames:
        pipe.send("ready")
        return [int(place.read(slot.array)[0]) for slot in frames]


def guest(pipe: Pipe, name: str) -> None:
    with gpuring.attach(name) as ring, ring.consumer():
        pipe.send()
        pipe.receive()


def test_another_process_attaches_and_reads(place, name, children):
    with place.create(name, **OPTIONS) as ring:
        by_pickle, by_name = (children(reader, how, place) for how in (ring, name))
        assert [by_pickle.receive(), by_name.receive()] == ["ready"] * 2
        with ring.producer() as producer:
            for k in range(20):
                with producer.claim(timeout=20) as slot:
                    place.fill(slot.array, k)
        results = by_pickle.result() + by_name.result()
    assert sorted(results) == list(range(20))


def test_a_ring_pickles_as_attach_by_name(name):
    with gpuring.create(name, **OPTIONS, device="host") as ring:
        with pickle.loads(pickle.dumps(ring)) as copy:
            assert copy is not ring
            assert copy.name == name
        assert not ring.closed
        gpuring.attach(name).close()


def test_a_ring_in_the_same_process(place, name):
    with place.create(name, **OPTIONS) as ring, gpuring.attach(name) as other:
        with ring.producer() as producer, other.consumer() as frames:
            with producer.claim() as slot:
                place.fill(slot.array, 6)
            with frames.acquire(timeout=5) as slot:
                assert place.read(slot.array).tolist() == [6] * 4
        other.close()
        assert ring.producer() is not None


def test_no_ring_of_that_name(name):
    with pytest.raises(gpuring.RingNotFound, match=rf"{name}.*/dev/shm"):
        gpuring.attach(name)
    with pytest.raises(gpuring.RingNotFound):
        gpuring.attach(name, timeout=0.05)
    with pytest.raises(gpuring.RingNotFound):
        gpuring.unlink(name)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            gpuring.attach(name, timeout=wrong)


def test_attach_waits_for_the_ring_to_appear(place, name, children):
    child = children(reader, name, place)
    with place.create(name, **OPTIONS) as ring:
        assert child.receive() == "ready"
        with ring.producer() as producer, producer.claim(timeout=20) as slot:
            place.fill(slot.array, 1)
        assert child.result() == [1]


def test_attach_waits_for_a_ring_that_is_being_created(name):
    fd = segments.create(segments.header_name(name), 0o600)
    with pytest.raises(gpuring.RingIncompatible):
        gpuring.attach(name)
    assert cleaned(name) == []  # its creator lives
    rings = []
    thread = threading.Thread(target=lambda: rings.append(gpuring.attach(name, timeout=20)))
    thread.start()
    segments.unlink(segments.header_name(name))
    os.close(fd)
    with gpuring.create(name, **OPTIONS, device="host"):
        thread.join()
        rings[0].close()


def test_a_name_is_taken(name):
    with gpuring.create(name, **OPTIONS, device="host") as ring:
        before = segments_of(name)
        with pytest.raises(gpuring.RingExists) as caught:
            gpuring.create(name, **OPTIONS, device="host")
        text = str(caught.value)
        for part in (name, f"pid {os.getpid()}", "alive", "clean", "replace=True"):
            assert part in text
        assert segments_of(name) == before
        gpuring.attach(name).close()
        assert ring.stats().cursor == 2


def test_replace_starts_a_new_epoch_and_ends_the_old_one(place, name):
    old = place.create(name, **OPTIONS)
    frames, producer = old.consumer(), old.producer()
    epoch = old.stats().epoch
    with place.create(name, **OPTIONS | {"slots": 3}, replace=True) as ring:
        assert ring.stats().epoch != epoch
        with pytest.raises(gpuring.RingClosed):
            producer.claim()
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire()
        old.close()  # must not take the new ring's name with it
        with gpuring.attach(name) as other:
            assert other.slots == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"slots": 0}, {"slots": 1025}, {"slots": -1}, {"slots": 1.0}, {"slots": "2"},
        {"max_peers": 0}, {"max_peers": 65}, {"max_subscriptions": 65}, {"max_subscriptions": 0},
        {"shape": None}, {"dtype": None}, {"shape": -1}, {"shape": (2, 0)}, {"shape": (1,) * 9},
        {"shape": 1.5}, {"dtype": "O"}, {"dtype": "V0"}, {"dtype": "no dtype"}, {"dtype": "S0"},
        {"fields": {"a": (1, "u1")}}, {"meta": "i8"}, {"meta": [("a", "O")]},
        {"meta": [("a", "V70000")]}, {"device": "tpu"}, {"device": 1.5}, {"device": "host:1"},
        {"sync": "event"}, {"gate": "host"}, {"sync": "none"}, {"gate": "none"},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_arguments_leave_nothing_behind(name, wrong):
    expected = (TypeError, ValueError)
    if "device" in wrong:
        expected = (*expected, gpuring.DeviceError)
    with pytest.raises(expected):
        gpuring.create(name, **OPTIONS | {"device": "host"} | wrong)
    assert segments_of(name) == []


@pytest.mark.parametrize("fields", [{}, {"": (1, "u1")}, {1: (1, "u1")}, {"a": 1}, 7])
def test_wrong_fields_leave_nothing_behind(name, fields):
    with pytest.raises((TypeError, ValueError)):
        gpuring.create(name, slots=2, fields=fields, device="host")


def test_a_description_that_does_not_fit_says_how_much_there_is(name):
    fields = {f"field-{k}": ((1, 2, 3), "f8") for k in range(3000)}
    with pytest.raises(ValueError, match=r"65536"):
        gpuring.create(name, slots=1, fields=fields, device="host")
    assert segments_of(name) == []


def test_ls_and_unlink(name):
    with gpuring.create(name, **OPTIONS, device="host") as ring, ring.consumer("x"):
        (mine,) = [stats for stats in gpuring.ls() if stats.name == name]
        assert mine == ring.stats() or mine.epoch == ring.stats().epoch
        assert [s.name for s in mine.subscriptions] == ["x"]
        inside = gpuring.attach(name)
        gpuring.unlink(name)
        assert segments_of(name) == []
        assert name not in [stats.name for stats in gpuring.ls()]
        with pytest.raises(gpuring.RingNotFound):
            gpuring.attach(name)
        with ring.producer() as producer, inside.consumer() as frames:  # those inside go on
            producer.claim().publish()
            assert frames.acquire().seq == 2
        inside.close()


def test_ls_and_clean_pass_over_foreign_files(name):
    with gpuring.create(name, **OPTIONS, device="host"):
        stranger = Path(f"/dev/shm/gpuring.{name}-junk")
        stranger.write_bytes(b"x" * 10000)
        assert name in [stats.name for stats in gpuring.ls()]
        assert cleaned(name) == [f"{name}-junk"]
        assert not stranger.exists()


def test_clean_removes_what_the_dead_left_and_keeps_the_living(name, children):
    host = Place("host", (("device", "host"),))
    with gpuring.create(f"{name}-mine", **OPTIONS, device="host"):
        child = children(owner, host, f"{name}-dead")
        assert child.receive() == child.pid
        assert cleaned(name) == []
        child.kill()
        (stats,) = [stats for stats in gpuring.ls() if stats.name == f"{name}-dead"]
        assert not stats.creator_alive
        assert [peer.alive for peer in stats.peers] == [False]
        assert cleaned(name) == [f"{name}-dead"]
        assert segments_of(f"{name}-dead") == []
        gpuring.attach(f"{name}-mine").close()


def test_clean_keeps_a_ring_whose_creator_died_but_not_its_guests(name, children):
    host = Place("host", (("device", "host"),))
    child = children(owner, host, name)
    child.receive()
    inside = children(guest, name)
    inside.receive()
    child.kill()
    assert cleaned(name) == []
    inside.kill()
    assert cleaned(name) == [name]


def test_clean_removes_what_a_creator_killed_half_way_left(name):
    half = Path(f"/dev/shm/gpuring.{name}-half")
    orphan = Path(f"/dev/shm/gpuring.{name}-orphan+{'0' * 32}")
    half.write_bytes(b"")
    orphan.write_bytes(b"x")
    assert cleaned(name) == [orphan.name, f"{name}-half"]
    assert not half.exists()
    assert not orphan.exists()


def test_clean_does_not_take_the_slots_of_a_ring_that_is_born_meanwhile(name, monkeypatch):
    """It lists headers and slots one after the other; names do not change in between."""
    born, calls, listed = [], [], segments.names

    def birth() -> None:
        born.append(gpuring.create(name, **OPTIONS, device="host"))

    birthing = threading.Thread(target=birth)

    def names() -> list[str]:
        found = listed()
        calls.append(found)
        if len(calls) == 2:  # the first is for the headers, the second for stray slots
            birthing.start()
        return found

    monkeypatch.setattr(segments, "names", names)
    removed = cleaned(name)
    birthing.join()
    with born[0]:
        assert removed == []
        gpuring.attach(name).close()


def test_a_ring_that_is_forgotten_warns_and_is_closed(name):
    ring = gpuring.create(name, **OPTIONS, device="host")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del ring
    assert any(name in str(w.message) and w.category is ResourceWarning for w in caught)
    assert segments_of(name) == []


def ends_in_order(pipe: Pipe, name: str) -> None:
    global forgotten  # closed at exit  # noqa: PLW0603
    forgotten = gpuring.create(name, **OPTIONS, device="host")
    producer = forgotten.producer()
    producer.claim().publish()
    pipe.send()
    pipe.receive()


def test_a_process_that_ends_without_closing_ends_the_stream_in_order(name, children):
    child = children(ends_in_order, name)
    child.receive()
    with gpuring.attach(name) as ring, ring.consumer(start="oldest") as frames:
        child.send()
        child.result()
        assert frames.acquire(timeout=20).seq == 2
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire(timeout=20)


# ---- two who change one name at once -----------------------------------------------------------


class Meanwhile:
    """A call in another thread, begun by the first call of a patched function, which does not wait
    for its end if the two exclude each other."""

    def __init__(self, monkeypatch, module, function, call, *, after: bool) -> None:
        self._real, self._after = getattr(module, function), after
        self._thread = threading.Thread(target=lambda: self.results.append(call()))
        self._begun = threading.Lock()
        self.results: list[gpuring.Ring] = []
        monkeypatch.setattr(module, function, self._patched)

    def _patched(self, *args, **options):
        first = self._begun.acquire(blocking=False)
        if first and not self._after:
            self._run()
        result = self._real(*args, **options)
        if first and self._after:
            self._run()
        return result

    def _run(self) -> None:
        self._thread.start()
        self._thread.join(0.3)

    def end(self) -> gpuring.Ring:
        self._thread.join()
        (result,) = self.results
        return result


def replaced(name: str) -> gpuring.Ring:
    return gpuring.create(name, **OPTIONS, device="host", replace=True)


@pytest.mark.parametrize("when", ["it was opened", "it is removed"])
def test_clean_does_not_take_a_ring_that_replaces_a_dead_one(name, children, monkeypatch, when):
    host = Place("host", (("device", "host"),))
    dead = children(owner, host, name)
    dead.receive()
    dead.kill()
    monkeypatch.setattr(segments, "names", lambda: [name])
    monkeypatch.setattr(segments, "orphans", list)
    if when == "it was opened":
        race = Meanwhile(monkeypatch, directory, "open_header", lambda: replaced(name), after=True)
    else:
        race = Meanwhile(monkeypatch, segments, "unlink", lambda: replaced(name), after=False)
    gpuring.clean()
    with race.end() as ring, gpuring.attach(name) as other:
        assert other.stats().epoch == ring.stats().epoch
        assert not ring.stats().closed
        assert not ring._header.retired


def end_with_one(name: str, rings: list[gpuring.Ring]) -> None:
    """Exactly one has the name; the others know that they have lost it."""
    with gpuring.attach(name) as found:
        epoch = found.stats().epoch
    others = [ring for ring in rings if ring.stats().epoch != epoch]
    assert len(others) == len(rings) - 1
    assert all(ring._header.closed or ring._header.retired for ring in others)
    for ring in others:
        ring.close()
    (last,) = [ring for ring in rings if ring not in others]
    assert not last._header.closed
    gpuring.attach(name).close()
    last.close()
    assert segments_of(name) == []


def test_a_replacer_that_is_replaced_meanwhile_knows_it(name, monkeypatch):
    old = gpuring.create(name, **OPTIONS, device="host")
    race = Meanwhile(monkeypatch, segments, "unlink", lambda: replaced(name), after=False)
    rings = [old]
    with contextlib.suppress(gpuring.RingExists):
        rings.append(replaced(name))
    end_with_one(name, [*rings, race.end()])


def test_of_many_who_replace_one_ring_one_has_the_name(name):
    for _ in range(20):
        rings, start = [], threading.Barrier(4)

        def replace(rings=rings, start=start) -> None:
            start.wait()
            with contextlib.suppress(gpuring.RingExists):
                rings.append(replaced(name))

        threads = [threading.Thread(target=replace) for _ in range(start.parties)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        end_with_one(name, rings)


def as_nobody(_pipe: Pipe, name: str) -> list[str]:
    """What another user's create and clean come to."""
    os.setresuid(65534, 65534, 65534)
    said = []
    for call in (lambda: gpuring.create(name, **OPTIONS, device="host"), gpuring.clean):
        try:
            call()
            said.append("no error")
        except Exception as error:
            said.append(type(error).__name__)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize("kind", ["ring", "half", "orphan"])
def test_another_users_name_is_taken_and_left_alone(name, children, kind):
    if kind == "ring":
        with gpuring.create(name, **OPTIONS, device="host"):
            assert children(as_nobody, name).result() == ["RingExists", "no error"]
            gpuring.attach(name).close()
        return
    path = Path(f"/dev/shm/gpuring.{name}" + f"+{'0' * 32}" * (kind == "orphan"))
    path.write_bytes(b"")
    path.chmod(0o600)
    taken = "RingExists" if kind == "half" else "no error"
    assert children(as_nobody, name).result() == [taken, "no error"]
    assert path.exists()
    path.unlink()
