"""GPURING_DEBUG=1 finds views that are used too late, and names who wrote beyond a slot's end."""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial

import numpy as np
import pytest

import gpuring
from gpuring.arrays import tensors
from gpuring.errors import OverrunWarning, StaleViewWarning
from gpuring.memory.frameworks import Span
from gpuring.ring import debug
from gpuring.slot_layout import Field
from tests.helpers.arrays import array_of
from tests.helpers.commands import python
from tests.helpers.processes import Pipe
from tests.helpers.promise import promise
from tests.service.services import answer_of, content, send, serve


@pytest.fixture
def on(monkeypatch):
    monkeypatch.setattr(debug, "ON", True)


@pytest.fixture
def ring(on, place, name):
    with place.create(name, slots=2, shape=(3, 5), dtype="f4") as ring:
        yield ring


def everything(slot):
    """All bytes of a slot, with its canary."""
    whole = Field("", (slot._spec.slot_nbytes,), np.dtype("u1"), 0)
    array = slot._memory.array(slot.index, whole, whole.shape, writable=True)
    return tensors.rows(array, whole, 1, array.nbytes)[0] if isinstance(array, Span) else array


def _put(ring, producer, frames=1):
    for _ in range(frames):
        with producer.claim() as slot:
            slot.copy_from(np.ones((3, 5), "f4"))


USES = {
    "item": lambda view: view[0, 0],
    "slice": lambda view: view[1:],
    "ufunc": lambda view: view + 1,
    "reversed": lambda view: 1 + view,
    "method": lambda view: view.sum(),
    "copy": lambda view: view.copy(),
    "comparison": lambda view: view == 1,
    "print": repr,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_view_used_after_release(ring, use):
    with ring.producer() as producer, ring.consumer() as frames:
        _put(ring, producer)
        slot = frames.acquire()
        view, part = slot.array, slot.array[:2]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            use(view)
            use(part)
        slot.release()
        for stale in (view, part):
            with pytest.warns(
                StaleViewWarning, match=r"sequence 2 \(slot 0\), acquired at .*released"
            ):
                use(stale)


def test_the_places_are_named(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        _put(ring, producer)
        here = sys._getframe().f_lineno
        slot = frames.acquire()
        view = slot.array
        slot.release()
        with pytest.warns(StaleViewWarning) as seen:
            view.sum()
        assert f"acquired at {__file__}:{here + 1}," in str(seen[0].message)
        assert (seen[0].filename, seen[0].lineno) == (__file__, here + 5)


def test_numpy_functions_are_uses_too(ring, place):
    if place.on_gpu:
        pytest.skip("CuPy's functions take the memory without asking the array")
    with ring.producer() as producer:
        with producer.claim() as slot:
            view = slot.array
            view[...] = 1
            view += 1
            assert view is slot.array
            assert type(view + 1) is np.ndarray
        for use in (np.sum, lambda v: np.add(1, v), lambda v: np.copyto(v, 0)):
            with pytest.warns(StaleViewWarning, match="claimed at .* after it was published"):
                use(view)


def test_a_copy_is_nobodys_view(ring, place):
    with ring.producer() as producer, ring.consumer() as frames:
        _put(ring, producer)
        with frames.acquire() as slot:
            kept = [slot.array.copy(), slot.array + 1, slot.array[:1].copy()]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [float(each.sum()) for each in kept] == [15, 30, 5]
            _put(ring, producer, 1)
            frames.acquire().release()
            _put(ring, producer, 1)
            frames.acquire().release()


@pytest.mark.parametrize("keep", ["array", "torch", "jax"])
def test_what_is_kept_is_reported_when_its_slot_comes_again(ring, keep):
    library = pytest.importorskip(keep) if keep != "array" else None
    if keep == "jax":
        library.devices()  # when jax starts, it makes the last of several GPUs current
        if ring.memory != "host":
            pytest.importorskip("cupy").cuda.Device(0).use()
    with ring.producer() as producer, ring.consumer() as frames:
        _put(ring, producer, 2)
        with frames.acquire() as slot:
            kept = slot.array if library is None else _import(library, slot)
        frames.acquire().release()
        _put(ring, producer)
        with pytest.warns(StaleViewWarning, match=r"sequence 2 .*acquired at .*kept.* sequence 4"):
            frames.acquire().release()
        del kept


def _import(library, slot):
    return (library if library.__name__ == "torch" else library.dlpack).from_dlpack(slot)


def test_a_loop_variable_is_not_kept(ring):
    """The variable is free for the next frame, also if that one is in the same slot."""
    with (
        ring.producer() as producer,
        ring.consumer(lossless=False) as frames,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        for _ in range(4):
            _put(ring, producer, 2)
            with frames.latest() as slot:
                image = slot.array
                assert image[0, 0] == 1


def test_a_claimed_slot_is_poisoned(ring, place):
    with ring.producer() as producer, ring.consumer() as frames:
        _put(ring, producer)
        with frames.acquire() as slot:
            raw = place.read(everything(slot))
        assert raw[:60].view("f4").tolist() == [1] * 15
        _put(ring, producer)
        slot = producer.claim()  # the slot of the first frame
        raw = place.read(everything(slot))
        slot.abandon()
        assert set(raw[:60]) == {debug.POISON}


@promise(
    "streams.md",
    "In debug mode each hand-over waits for the slot's stream, and then looks behind the end of "
    "the slot.",
)
def test_who_writes_beyond_the_end_is_named(ring, place):
    with ring.producer() as producer, ring.consumer() as frames:
        slot = producer.claim()
        place.fill(everything(slot)[50:63], 0)  # the frame has 60 bytes
        with pytest.warns(OverrunWarning, match=r"sequence 2 .*claimed at .*up to 3 bytes beyond"):
            slot.publish()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            slot = frames.acquire()  # the canary was restored, so it is reported once
        place.fill(everything(slot)[-1:], 0)
        with pytest.warns(
            OverrunWarning, match=r"sequence 2 .*acquired at .*1 bytes before the next"
        ):
            slot.release()


def test_who_did_not_write_beyond_the_end_is_not(ring, place):
    """A process without debug mode wrote there, between two frames."""
    with ring.producer() as producer:
        place.fill(everything(producer._slots[0])[60:61], 0)
        with pytest.warns(OverrunWarning, match="before it was claimed"):
            slot = producer.claim()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            slot.publish()


def test_views_of_a_batch_are_watched(ring):
    with ring.producer() as producer, ring.consumer() as frames:
        with producer.claim_many(2) as batch:
            for slot in batch:
                slot.copy_from(np.ones((3, 5), "f4"))
            written = batch[0].array
        with frames.acquire_many(2) as batch:
            views = [slot.array for slot in batch]
            assert views[1][0, 0] == 1
        for stale in (written, *views):
            with pytest.warns(StaleViewWarning):
                stale.sum()


def test_an_old_batch_leaves_alone_what_came_after_it(ring):
    """Slot objects are used again each lap."""
    with ring.producer() as producer, ring.consumer() as frames:
        with producer.claim_many(2) as old:
            for slot in list(old):
                slot.publish()
            with frames.acquire_many(2) as read:
                pass
            # One by one, because with gate="host" a batch takes only what the GPU is done with.
            again = [producer.claim(10), producer.claim(10)]
        view = again[0].array
        old.publish()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            view.sum()
        assert [seq for _, seq in sorted(producer._peer.holding())] == [4, 5]
        for slot in again:
            slot.publish()
        held = [frames.acquire(10), frames.acquire(10)]
        read.release()
        assert len(frames._peer.holding()) == 2
        for slot in held:
            slot.release()


def test_views_of_several_fields_are_watched(on, place, name):
    fields = {"y": ((2, 3), "u1"), "uv": (4, "f8")}
    with place.create(name, slots=2, fields=fields) as ring, ring.producer() as producer:
        with producer.claim() as slot:
            view = slot["uv"]
            assert view is slot["uv"]
            with pytest.raises(TypeError, match="'y', 'uv'"):
                _ = slot.array
        with pytest.warns(StaleViewWarning):
            view.sum()


def test_a_warning_that_is_an_error_leaves_no_claim(ring, place):
    with ring.producer() as producer, ring.consumer(lossless=False):
        place.fill(everything(producer._slots[0])[60:61], 0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(OverrunWarning):
                producer.claim()
            producer.claim(timeout=1).publish()
            producer.claim(timeout=1).publish()


@pytest.mark.parametrize("many", [False, True])
def test_an_interrupt_before_anybody_has_the_frame_leaves_it_to_come_again(ring, monkeypatch, many):
    def interrupted(*_):
        raise KeyboardInterrupt

    with ring.producer() as producer, ring.consumer() as reader:
        acquire = partial(reader.acquire_many, 2) if many else reader.acquire
        _put(ring, producer, 2)
        with monkeypatch.context() as patch:
            patch.setattr(debug.WatchedSlot, "_begin_lease", interrupted)
            with pytest.raises(KeyboardInterrupt):
                acquire(timeout=0)
        assert reader._peer.holding() == []
        with acquire(timeout=0) as slots:
            assert (slots[0] if many else slots).seq == ring.slots


def test_a_view_of_a_slot_that_was_free(ring):
    with ring.producer() as producer:
        with producer.try_claim() as slot:
            view = slot.array
        with pytest.warns(StaleViewWarning):
            view.sum()
        with ring.consumer(start="oldest"):
            assert producer.try_claim() is not None
            assert producer.try_claim() is None


def test_a_view_of_a_frame_that_is_to_come_again(ring):
    with ring.producer() as producer, ring.consumer("rec", durable=True) as reader:
        _put(ring, producer)
        views = []

        def is_interrupted():
            for slot in reader:
                views.append(slot.array)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            is_interrupted()
        with pytest.warns(StaleViewWarning):
            views[0].sum()


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("end", ["publish", "abandon", "release"])
def test_a_warning_that_is_an_error_gives_the_slot_back(ring, place, end, many):
    with ring.producer() as producer, ring.consumer() as consumer:
        if end == "release":
            _put(ring, producer, 2)
        peer = consumer if end == "release" else producer
        take = [producer.claim, producer.claim_many, consumer.acquire, consumer.acquire_many]
        got = take[2 * (peer is consumer) + many](*([2] if many else []), timeout=1)
        place.fill(everything(peer._slots[0])[60:61], 0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(OverrunWarning):
                getattr(got, end)()
        assert peer._peer.holding() == []


def test_the_slots_of_a_service_are_watched(on, place, name):
    """Requests and answers have classes of slots of their own, which debug mode watches, too."""
    with serve(name, place) as server, gpuring.connect(name, timeout=10) as client:
        with client.request() as slot:
            views = {r"claimed at .*published": slot.array}
            place.fill(slot, content(client.id, 1))
            pending = slot.call
        (call,) = server.take(timeout=10)
        views[r"acquired at .*released"] = call.array
        with call.answer() as slot:
            views[r"claimed at .*was published"] = slot.array
            slot.array[...] = answer_of(call.array)
        with pending.result(20) as slot:
            views[r"acquired at .*was released"] = slot.array
            assert (place.read(slot) == answer_of(content(client.id, 1))).all()
        assert len(set(map(id, views.values()))) == 4
        for told, view in views.items():
            with pytest.warns(StaleViewWarning, match=f"{__file__}.*".join(told.split(".*"))):
                view.sum()


def test_an_answer_that_was_begun_anew_is_watched_anew(on, place, name):
    with serve(name, place) as server, gpuring.connect(name, timeout=10) as client:
        pending = send(client, 1, place)
        (call,) = server.take(timeout=10)
        slot = call.answer()
        stale = slot.array
        stale[...] = 1
        slot.abandon()
        with pytest.warns(StaleViewWarning):
            stale.sum()
        with call.answer() as again:
            assert again is not slot  # this test still has that object
            assert set(place.read(everything(again))[: again.array.nbytes]) == {debug.POISON}
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                again.array[...] = answer_of(call.array)
            with pytest.warns(StaleViewWarning):
                stale.sum()
        with pending.result(20) as slot:
            assert (place.read(slot) == answer_of(content(client.id, 1))).all()


def read_one(pipe: Pipe, name: str) -> bool:
    with (
        gpuring.attach(name, timeout=20) as ring,
        ring.consumer(start="oldest") as frames,
        frames.acquire(20) as slot,
    ):
        return bool((array_of(slot) == 1).all())


def test_others_need_not_be_in_debug_mode(ring, children, name, place):
    with ring.producer() as producer:
        _put(ring, producer)
        assert ring.spec.canary_nbytes
        assert children(read_one, name).result()


def test_slots_are_not_watched_by_default(place, name):
    with place.create(name, slots=2, shape=4, dtype="u1") as ring, ring.producer() as producer:
        assert not ring.spec.canary_nbytes
        assert type(producer) is gpuring.Producer
        assert type(producer.claim().array).__module__ in ("numpy", "cupy", "cupy._core.core")


@pytest.mark.parametrize(("value", "on"), [("1", True), ("0", False), ("", False), (None, False)])
def test_the_environment_turns_it_on(value, on):
    environment = {k: v for k, v in os.environ.items() if k != "GPURING_DEBUG"}
    if value is not None:
        environment["GPURING_DEBUG"] = value
    code = "import gpuring.ring.debug; print(gpuring.ring.debug.ON)"
    done = python(code, env=environment, check=True)
    assert done.stdout.split() == [str(on)]
