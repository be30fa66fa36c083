"""A call is ordered on the GPU from end to end: on the client's stream, the engine's, and the
client's again."""

from __future__ import annotations

import threading

import pytest

import gpuring
from gpuring.memory import kinds
from tests.gpu import library
from tests.gpu.ordering import tools
from tests.helpers.places import ON_GPU, STREAM_GATED
from tests.helpers.processes import poll
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of, tidied
from tests.service.services import outlives_its_creator

pytestmark = pytest.mark.gpu
WORDS = 1 << 16


@promise(
    "services.md",
    "On a GPU, streams wait for streams.",
    "On a GPU, `take(stream=)` orders like acquire, and `answer(stream=)` orders like claim.",
)
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "mutant"])
@pytest.mark.parametrize("place", STREAM_GATED, ids=lambda place: place.name)
def test_a_call_waits_for_nobody_on_the_host_and_for_everybody_on_the_gpu(
    place, name, ordered, monkeypatch
):
    """The client's stream is held before the request is written.  Meanwhile the engine computes and
    the answer is received, by a thread on a stream other than the reader's."""
    kernels = tools()
    asking, engine, receiving, reading = (library.new_stream() for _ in range(4))
    wrong = kernels.counter()
    frame = ((WORDS,), "u8")
    with (
        gpuring.serve(name, request=frame, response=frame, **dict(place.options)) as server,
        gpuring.connect(name) as client,
    ):
        if not ordered:  # the answer is handed to the reader as if it had received it
            monkeypatch.setattr(client._mailbox, "order", lambda *_: None)
        with kernels.Latch(limit_s=40) as latch:
            with client.request(10, stream=asking) as slot:
                latch.hold(asking)
                kernels.stamp(slot, 7, asking)
                call = slot.call
            (taken,) = server.take(timeout=10, stream=engine)
            kernels.check(taken.slot, 7, wrong, engine)
            with taken.answer(stream=engine) as slot:
                kernels.stamp(slot, 9, engine)

            def receive():
                with receiving:
                    client._mailbox.pump(call._is_done, None, receiving)

            thread = threading.Thread(target=receive)
            thread.start()
            thread.join(20)
            answer = call.result(10, stream=reading)
            kernels.check(answer, 9, wrong, reading)
            if not ordered:
                reading.synchronize()
            early = library.done(reading)
            latch.open()
        for stream in (asking, engine, receiving, reading):
            stream.synchronize()
        answer.release()
        assert not latch.expired
        assert early is not ordered
        assert (kernels.count(wrong) == 0) is ordered


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "mutant"])
@pytest.mark.parametrize("place", STREAM_GATED, ids=lambda place: place.name)
def test_parts_of_an_answer_are_handed_out_before_the_gpu_has_written_them(
    place, name, ordered, monkeypatch
):
    """The engine's stream is held before it writes the first part."""
    kernels = tools()
    engine, receiving, reading = (library.new_stream() for _ in range(3))
    wrong = kernels.counter()
    frame = ((WORDS,), "u8")
    with (
        gpuring.serve(name, request=frame, response=frame, **dict(place.options)) as server,
        gpuring.connect(name, parts=4) as client,
    ):
        if not ordered:
            monkeypatch.setattr(client._mailbox, "order", lambda *_: None)
        with client.request(10) as slot:
            call = slot.call
        (taken,) = server.take(timeout=10, stream=engine)
        with kernels.Latch(limit_s=40) as latch:
            latch.hold(engine)
            for k in range(4):
                with taken.part(10, stream=engine) as slot:
                    kernels.stamp(slot, k + 1, engine)
            taken.end()
            parts = call.parts(10, stream=reading)

            def receive():
                with receiving:
                    client._mailbox.pump(call._is_over, None, receiving)

            thread = threading.Thread(target=receive)
            thread.start()
            thread.join(20)
            for k in range(4):
                kernels.check(next(parts), k + 1, wrong, reading)
            if not ordered:
                reading.synchronize()
            early = library.done(reading)
            latch.open()
        for stream in (engine, receiving, reading):
            stream.synchronize()
        assert next(parts, None) is None
        assert client.in_flight == 0
        assert not latch.expired
        assert early is not ordered
        assert (kernels.count(wrong) == 0) is ordered


@promise(
    "services.md",
    "those inside go on, and new engines and clients may join as long as one of them lives",
    "When the creator is killed, the others go on as the table says. On a GPU "
    '`serve(memory="vmm")` or `"pool"` lets such a service take new engines and clients, which '
    '`"ipc"` does not ([kinds of memory](memory.md)).',
)
@pytest.mark.parametrize("place", ON_GPU, ids=lambda place: place.name)
def test_whether_a_service_outlives_its_creator_depends_on_its_memory(place, name, children):
    able, why = kinds.supported(place.memory, 0)
    if not able:
        pytest.skip(why)
    outlives_its_creator(name, children, place, joins=place.memory in kinds.OUTLIVE)
    poll(lambda: tidied(name) or not segments_of(name))
