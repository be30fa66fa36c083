"""Functions that answer calls in batches: what they get, what they return, and how they fail."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import gpuring
from tests.helpers.arrays import array_of
from tests.helpers.places import HOST
from tests.helpers.promise import promise
from tests.service.services import WORDS, content, running, send, serve


@pytest.fixture
def both(name, place):
    """A server of 8 slots and a client."""
    with (
        serve(name, place, slots=8, response_meta=None) as server,
        gpuring.connect(name, calls=8) as client,
    ):
        yield server, client


def values(place, client, calls):
    """The answers to some calls, as NumPy arrays."""
    found = []
    for call in calls:
        with call.result(20) as slot:
            found.append(place.read(slot))
    return found


def address(array):
    if hasattr(array, "data_ptr"):
        return array.data_ptr()
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


# ---- what a function gets ------------------------------------------------------------------------


@promise(
    "services.md",
    "The function gets one array, in which each row is a request. If the requests lie in "
    "successive slots, the array shows them where they are.",
    "The array is CuPy's or NumPy's.",
)
def test_requests_in_a_row_are_one_array_in_place(both, place):
    server, client = both
    got = []

    @server.batch(max_batch=4)
    def answer(requests, calls):
        first, distance = address(array_of(calls[0].slot)), server.ring.spec.slot_nbytes
        rows = [address(row) - first for row in requests]
        got.append((requests.shape, rows == [distance * k for k in range(len(rows))]))
        return 3 * requests + 1

    calls = [send(client, k, place) for k in range(4)]
    place.wait()  # with gate="host" they are there when the GPU has written them
    with running(server):
        for k, found in enumerate(values(place, client, calls)):
            assert (found == 3 * content(client.id, k) + 1).all()
    assert got == [((4, WORDS), True)]
    assert (server.counts.taken, server.counts.answered) == (4, 4)


@promise(
    "services.md",
    "If not, they are copied into memory that is kept. That happens where the ring ends between "
    "them, and where a call between them is left out.",
)
def test_requests_that_are_not_in_a_row_are_copied_into_one_array(both, place):
    """The ring ends between them, or a call between them has expired."""
    server, client = both
    got = []

    @server.batch(max_batch=8)
    def answer(requests, calls):
        where = address(requests)
        in_slot = any(where == address(array_of(call.slot)) for call in calls)
        got.append((len(requests), in_slot, where))
        return 3 * requests + 1

    def ask(first, n, expired=()):
        calls = [(k, send(client, k, place, expires_s=0 if k in expired else None))
                 for k in range(first, first + n)]  # fmt: skip
        place.wait()  # with gate="host" they are there when the GPU has written them
        with running(server):
            for k, call in calls:
                if k in expired:
                    with pytest.raises(gpuring.RingTimeout):
                        call.result(20)
                else:
                    (found,) = values(place, client, [call])
                    assert (found == 3 * content(client.id, k) + 1).all()

    ask(0, 6)
    ask(6, 4)  # slots 6, 7, 0, 1
    ask(10, 4, expired=(11,))
    assert [(n, in_slot) for n, in_slot, _ in got] == [(6, True), (4, False), (3, False)]
    assert got[1][2] == got[2][2]  # the memory is kept


@promise("services.md", "On the host the array is read-only, as every request is.")
@pytest.mark.parametrize("crossing", [False, True])
def test_on_the_host_a_function_cannot_write_into_requests(name, crossing):
    with serve(name, slots=4, response_meta=None) as server, gpuring.connect(name) as client:
        for k in range(3 if crossing else 0):
            pending = send(client, k)
            server.take(timeout=10).fail("not yet")
            del pending

        @server.batch(max_batch=2)
        def answer(requests):
            requests += 1
            return requests

        calls = [send(client, k) for k in range(2)]
        with running(server):
            for call in calls:
                with pytest.raises(gpuring.CallFailed, match="read-only"):
                    call.result(20)


@promise(
    "services.md",
    "Requests of several fields come as keyword arguments, and answers of several fields go back "
    "as a dict.",
    "If the function has a parameter `calls`, it gets the calls there, with their metadata.",
)
def test_several_fields_are_keywords_and_a_dict(name, place):
    terms = {
        "request": {"x": ((3,), "f4"), "y": ((), "i4")},
        "response": {"sum": ((), "f4"), "both": ((2, 3), "f4")},
        "request_meta": [("scale", "f4")],
        "response_meta": None,
    }
    with serve(name, place, **terms) as server, gpuring.connect(name) as client:

        @server.batch(max_batch=4)
        def answer(y, x, calls):
            assert (x.shape, y.shape, len(calls)) == ((len(calls), 3), (len(calls),), len(y))
            for k, call in enumerate(calls):
                assert call.meta["scale"] == float(y[k])
            both = np.stack if isinstance(x, np.ndarray) else __import__("cupy").stack
            return {"sum": (x.sum(axis=1) + y).astype("f4"), "both": both([x, -x], axis=1)}

        calls = []
        for k in range(4):
            with client.request(10) as slot:
                place.fill(array_of(slot, "x"), np.arange(3, dtype="f4") + k)
                place.fill(array_of(slot, "y"), k)
                slot.meta["scale"] = k
                calls.append(slot.call)
        with running(server):
            for k, call in enumerate(calls):
                with call.result(20) as slot:
                    assert place.read(array_of(slot, "sum")) == 3 + 4 * k
                    x = np.arange(3, dtype="f4") + k
                    assert (place.read(array_of(slot, "both")) == [x, -x]).all()


@promise("services.md", "Requests of different shapes come in different batches.")
@pytest.mark.parametrize(
    ("sizes", "batches"),
    [((3, 5, 3, 3, 5), [(2, 5), (3, 3)]), ((3, 3, 3), [(3, 3)])],
    ids=["two shapes", "one"],
)
def test_requests_of_different_shapes_come_in_different_batches(both, place, sizes, batches):
    server, client = both
    shapes = []

    @server.batch(max_batch=8)
    def answer(requests):
        shapes.append(requests.shape)
        return [requests.sum(axis=1)[k] + np.zeros(WORDS, "i8") for k in range(len(requests))]

    def sized(n):
        with client.request(10, shape=(n,)) as slot:
            place.fill(slot, 1)
            return slot.call

    if place.on_gpu:
        pytest.skip("the function returns NumPy arrays")
    calls = [sized(n) for n in sizes]
    with running(server):
        for n, found in zip(sizes, values(place, client, calls), strict=True):
            assert (found == n).all()
    assert sorted(shapes) == batches


@promise("services.md", "It may answer or fail some of them itself.")
def test_a_function_may_answer_or_fail_a_call_itself(both, place):
    server, client = both

    @server.batch(max_batch=3)
    def answer(requests, calls):
        calls[0].fail("too dark")
        with calls[1].answer() as slot:
            place.fill(slot, 7)
        return 3 * requests + 1

    calls = [send(client, k, place) for k in range(3)]
    place.wait()  # so that all three are in one batch
    with running(server):
        with pytest.raises(gpuring.CallFailed, match="too dark"):
            calls[0].result(20)
        second, third = values(place, client, calls[1:])
    assert (second == 7).all()
    assert (third == 3 * content(client.id, 2) + 1).all()


class Row:
    """An answer that notes, when it is copied, which of the calls were answered."""

    def __init__(self, array, calls, told):
        self._array, self._calls, self._told = array, calls, told

    @property
    def __array_interface__(self):
        self._told.append([call.answered for call in self._calls])
        return self._array.__array_interface__


def test_all_answers_are_written_before_the_first_request_is_given_back(name):
    """So answers may be views of other requests."""
    told = []
    with serve(name, response_meta=None) as server, gpuring.connect(name) as client:

        @server.batch(max_batch=8)
        def answer(requests, calls):
            return [Row(row, calls, told) for row in requests[::-1]]

        calls = [send(client, k) for k in range(4)]
        with running(server):
            for k, found in enumerate(values(HOST, client, calls)):
                assert (found == content(client.id, 3 - k)).all()
    assert told == [[False] * 4] * len(told)
    assert len(told) >= 4


# ---- failures ------------------------------------------------------------------------------------


@promise(
    "services.md",
    "If the function raises an exception, the calls of the batch fail with its text.",
    "The traceback goes to the logger `gpuring`, and the engine goes on.",
)
def test_an_exception_fails_its_batch_and_the_engine_goes_on(name, caplog):
    with serve(name, response_meta=None) as server, gpuring.connect(name) as client:

        @server.batch(max_batch=2)
        def answer(requests, calls):
            if calls[0].meta["k"] == 0:
                raise ArithmeticError("no such class")
            return 3 * requests + 1

        calls = [send(client, k) for k in range(4)]
        with running(server):
            for call in calls[:2]:
                with pytest.raises(gpuring.CallFailed, match="ArithmeticError: no such class"):
                    call.result(20)
            for k, found in enumerate(values(HOST, client, calls[2:]), 2):
                assert (found == 3 * content(client.id, k) + 1).all()
        assert (server.counts.failed, server.counts.answered) == (2, 2)
        (record,) = caplog.records
        assert record.name == "gpuring"
        assert "a batch of 2 failed" in record.getMessage()
        assert record.exc_info is not None
        caplog.clear()


@promise("services.md", "They also fail if it returns something of another shape, dtype or count.")
@pytest.mark.parametrize(
    ("result", "why"),
    [
        (lambda _: None, "NoneType, not an array of shape (2, 64) or a list of 2 arrays"),
        (lambda x: x[:1], "shape (1, 64) for 2 calls, whose answers have the shape (2, 64)"),
        (lambda x: x[:, :5], "shape (2, 5) for 2 calls"),
        (lambda x: x[0], "shape (64,) for 2 calls"),
        (lambda x: x.astype("f4"), "float32, and answers are int64"),
        (lambda x: [x[0]], "1 answer to 2 calls"),
        (lambda x: [x[0], x[1, :3]], "(3,)"),
        (lambda _: "no", "str, not an array"),
    ],
)
def test_what_is_not_the_answers_fails_the_whole_batch(name, result, why, caplog):
    with serve(name, response_meta=None) as server, gpuring.connect(name) as client:
        server.batch(2)(result)
        calls = [send(client, k) for k in range(2)]
        with running(server):
            for call in calls:
                with pytest.raises(gpuring.CallFailed) as failed:
                    call.result(20)
                assert why in str(failed.value)
        assert server.counts.answered == 0
        caplog.clear()


@pytest.mark.parametrize("result", [lambda x: x, lambda x: {"a": x}, lambda x: {"a": x, "c": x}])
def test_what_are_not_the_fields_of_an_answer_fails_the_batch(name, result, caplog):
    fields = {"a": (WORDS, "i8"), "b": (WORDS, "i8")}
    with (
        serve(name, response=fields, response_meta=None) as server,
        gpuring.connect(name) as client,
    ):
        server.batch(2)(result)
        call = send(client, 0)
        with running(server), pytest.raises(gpuring.CallFailed, match=r"fields \['a', 'b'\]"):
            call.result(20)
        caplog.clear()


@promise("services.md", "A `DeviceError` ends the engine, because its GPU cannot be used any more.")
def test_a_gpu_that_cannot_be_used_ends_the_run(name):
    with serve(name, response_meta=None) as server, gpuring.connect(name) as client:

        @server.batch(max_batch=2)
        def answer(_):
            raise gpuring.DeviceError("the GPU is gone")

        call = send(client, 0)
        with pytest.raises(gpuring.DeviceError):
            server.run()
        with pytest.raises(gpuring.CallFailed, match="the GPU is gone"):
            call.result(20)


def test_what_is_no_batch_is_refused(name):
    with serve(name) as server:
        with pytest.raises(gpuring.RingError, match=r"decorate it with @server\.batch"):
            server.run()
        for arguments, error in [
            ((answer_nothing,), TypeError), ((0,), ValueError), (("8",), TypeError),
            ((8, None), ValueError), ((8, -1), ValueError), ((8, 0, 1), TypeError),
        ]:  # fmt: skip
            more = {"warm_up": arguments[2]} if len(arguments) == 3 else {}
            with pytest.raises(error):
                server.batch(*arguments[:2], **more)


def answer_nothing(_):
    """A function of an engine that gets no batch."""


@pytest.mark.parametrize(
    ("request_", "function", "told"),
    [
        (((3,), "f4"), lambda: 0, "gets one array, but: too many positional"),
        (((3,), "f4"), lambda one, other: 0, "gets one array, but: missing .* 'other'"),
        ({"y": ((3,), "f4"), "uv": ((2,), "f4")}, lambda images: 0, "gets y=, uv=, but: missing"),
        ({"y": ((3,), "f4"), "uv": ((2,), "f4")}, lambda y, calls: 0, "gets y=, uv=, but: got an"),
    ],
    ids=["none", "two", "not by field", "one of two"],
)
def test_a_function_that_cannot_take_a_batch_is_refused(name, request_, function, told):
    terms = {"request": request_, "response": ((3,), "f4"), "device": "host"}
    with gpuring.serve(name, **terms) as server, pytest.raises(TypeError, match=told):
        server.batch(2)(function)


def test_a_decorator_may_give_a_function_more_than_a_batch(name):
    def scaled(function):
        return functools.wraps(function)(lambda *given: function(2.0, *given))

    with serve(name) as server:
        server.batch(2)(scaled(lambda scale, images: images * scale))
