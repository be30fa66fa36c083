"""The queues between the main process and its workers."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from typing import Any

import pytest

pytest.importorskip("torch")

from gpuring.torch.queues import FromThread, Queue, with_queues
from tests.helpers.processes import PATIENCE_S


@pytest.fixture(params=["fork", "spawn"])
def made(request):

    context = with_queues(multiprocessing.get_context(request.param))
    made: Queue = context.Queue()
    yield made
    made.close()
    made.join_thread()


def test_what_is_small_is_written_at_once(made):
    made.put((1, "small"))
    assert made._thread is None
    assert made.get(timeout=0) == (1, "small")


@pytest.mark.deadline(10)
@pytest.mark.parametrize("first", [bytes(100_000), b""], ids=["large", "small"])
def test_what_a_pipe_has_no_room_for_stays_in_order(made, first):
    """And nobody waits for the room."""
    things: list[Any] = [first, *((k, bytes(3000)) for k in range(100)), "last"]
    for each in things:
        made.put(each)
    assert [made.get(timeout=PATIENCE_S) for _ in things] == things
    with pytest.raises(queue.Empty):
        made.get(timeout=0)


def test_what_cannot_be_pickled_is_an_error_of_who_puts_it(made):
    with pytest.raises((AttributeError, TypeError)):
        made.put(threading.Lock())
    made.put("next")
    assert made.get(timeout=0) == "next"


def test_the_queue_of_a_thread_is_read_in_the_same_way():
    source: queue.Queue[int] = queue.Queue()
    taken = FromThread(source)
    with pytest.raises(queue.Empty):
        taken.get(timeout=0)
    threading.Timer(0.01, source.put, (7,)).start()
    assert taken.get(timeout=PATIENCE_S) == 7
    assert not taken.waits
