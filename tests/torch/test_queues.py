"""The queues between the main process and its workers."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import queue
import select
import threading
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from gpuring.torch.progress import Task
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


@pytest.mark.parametrize(
    ("asked", "is_simple"),
    [([3, 4], True), ([3, "x"], False), ([torch.tensor(3)], False), ([], False), ((3, 4), False)],
)
def test_only_a_list_of_numbers_needs_no_pickler_of_multiprocessing(asked, is_simple):
    assert Task(0, asked, one_by_one=True).is_simple == is_simple


@pytest.mark.parametrize("first", [bytes(100_000), b""], ids=["large", "small"])
def test_what_a_pipe_has_no_room_for_stays_in_order(made, first):
    """put() does not wait for room."""
    things: list[Any] = [first, *((k, bytes(3000)) for k in range(100)), "last"]
    for each in things:
        made.put(each)
    assert [made.get(timeout=PATIENCE_S) for _ in things] == things
    with pytest.raises(queue.Empty):
        made.get(timeout=0)


def test_nobody_waits_at_a_pipe_that_takes_no_more_than_it_has_to(made):
    fcntl.fcntl(made._writer.fileno(), fcntl.F_SETPIPE_SZ, select.PIPE_BUF)
    for nbytes in range(select.PIPE_BUF - 40, select.PIPE_BUF + 10):
        putting = threading.Thread(target=made.put, args=(bytes(nbytes),))
        putting.start()
        putting.join(10)
        waits = putting.is_alive()
        assert made.get(timeout=PATIENCE_S) == bytes(nbytes)
        assert not waits


def test_a_closed_queue_takes_nothing(made):
    made.close()
    with pytest.raises(ValueError, match="closed"):
        made.put("small")


def test_nobody_waits_while_another_process_writes(made):
    with made._wlock:
        made.put("small")
        with pytest.raises(queue.Empty):
            made.get(timeout=0)
    assert made.get(timeout=PATIENCE_S) == "small"


def test_once_the_thread_has_written_what_is_small_is_written_at_once_again(made):
    with made._wlock:
        made.put("by the thread")
    assert made.get(timeout=PATIENCE_S) == "by the thread"
    with made._wlock:  # the thread has finished
        pass
    for k in range(100):
        made.put(k)
        assert made.get(timeout=0) == k


def test_what_cannot_be_pickled_is_an_error_of_who_puts_it(made):
    with pytest.raises((AttributeError, TypeError)):
        made.put(threading.Lock())
    made.put("next")
    assert made.get(timeout=0) == "next"


class Gone:
    """A tensor of a worker that has died."""

    def __reduce__(self) -> Any:
        return _fetched, ()


def _fetched() -> Any:
    raise ConnectionResetError(errno.ECONNRESET, "the worker is gone")


def test_what_cannot_be_fetched_is_an_error_of_who_reads(made):
    """torch's thread for pinned memory is the first reader, and goes on."""
    made.put((3, Gone()))
    with pytest.raises(ConnectionResetError):
        made.get(timeout=0)
    made.passes_errors_on = True
    made.put((3, Gone()))
    made.put((4, "batch"))
    source: queue.Queue[Any] = queue.Queue()
    for _ in range(2):
        number, batch = made.get(timeout=PATIENCE_S)
        source.put((number, pin_memory(batch)))
    taken = FromThread(source)
    with pytest.raises(ConnectionResetError, match="the worker is gone"):
        taken.get(timeout=0)
    assert taken.get(timeout=0) == (4, "batch")


def test_the_queue_of_a_thread_is_read_in_the_same_way():
    source: queue.Queue[Any] = queue.Queue()
    taken = FromThread(source)
    with pytest.raises(queue.Empty):
        taken.get(timeout=0)
    threading.Timer(0.01, source.put, ((7, "batch"),)).start()
    assert taken.get(timeout=PATIENCE_S) == (7, "batch")
    assert not taken.waits
