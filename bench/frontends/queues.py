"""Queues of multiprocessing: pickled arrays, and torch's CUDA tensors.

One queue has all requests, and one queue for each worker has its answers
(https://docs.python.org/3/library/multiprocessing.html#exchanging-objects-between-processes).

* **pickled arrays**: what goes through the queue is a NumPy array in host memory.
* **torch tensors**: importing torch.multiprocessing teaches the same queues to pass CUDA tensors
  by handle (https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-cuda-tensors).  The
  receiver drops a tensor as soon as it can.  On the host, torch puts tensors into shared memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.frontends.transport import (
    SLICE_S,
    TAKE,
    Answerer,
    Asker,
    Hands,
    Request,
    Setting,
    Transport,
    Waiting,
    as_tensor,
)

Lane = tuple[Any, list[Any]]


@contextmanager
def lane(setting: Setting) -> Iterator[Lane]:
    """Holds (the queue of requests, the queues of answers)."""
    context = multiprocessing.get_context("spawn")
    yield context.Queue(), [context.Queue() for _ in range(setting.workers)]


@dataclass(frozen=True)
class Form:
    """The form in which pixels go through a queue."""

    put: Callable[[Any], Any]
    """From a tensor that nobody else uses."""
    got: Callable[[Any, str], Any]
    """To a tensor on that device."""


def pickled(tensor: Any) -> Any:
    return tensor.cpu().numpy()


def unpickled(array: Any, device: str) -> Any:
    import torch

    return torch.from_numpy(array).to(device)


def same(tensor: Any, *_: str) -> Any:
    return tensor


class QueueAsker(Asker):
    def __init__(self, form: Form, setting: Setting, lane: Lane, number: int) -> None:
        import torch.multiprocessing  # noqa: F401  teaches queues to pass tensors

        self._form = form
        self._device = setting.torch_device
        self._patience_s = setting.patience_s
        self._requests, answers = lane
        self._number = number
        self._waiting = Waiting(answers[number].get)

    async def ask(self, photo: Any, hands: Hands) -> bytes:
        number, answered = self._waiting.open()
        self._requests.put((self._number, number, await hands.run(self._outgoing, photo)))
        hands.mark("send")
        answer = await asyncio.wait_for(answered, self._patience_s)
        hands.mark("wait")
        encoded: bytes = await hands.run(self._encoded, answer, hands.encode)
        return encoded

    def _outgoing(self, photo: Any) -> Any:
        # The codec's own memory cannot be shared, and the codec uses it again.
        return self._form.put(as_tensor(photo, self._device).clone())

    def _encoded(self, answer: Any, encode: Callable[[Any], bytes]) -> bytes:
        return encode(self._form.got(answer, self._device))


class QueueRequest(Request):
    def __init__(self, form: Form, device: str, answers: Any, number: int, photo: Any) -> None:
        self._form, self._device = form, device
        self._answers, self._number, self._photo = answers, number, photo

    def pixels(self) -> Any:
        photo, self._photo = self._photo, None  # nothing else keeps the tensor
        return self._form.got(photo, self._device)

    def answer(self, large: Any) -> None:
        self._answers.put((self._number, self._form.put(large)))


class QueueAnswerer(Answerer):
    def __init__(self, form: Form, setting: Setting, lane: Lane, number: int) -> None:
        import torch.multiprocessing  # noqa: F401  teaches queues to pass tensors

        self._form = form
        self._device = setting.torch_device
        self._requests, self._answers = lane

    def take(self) -> Sequence[Request]:
        taken: list[Request] = []
        with contextlib.suppress(queue.Empty):
            while len(taken) < TAKE:
                taken += self._one(0 if taken else SLICE_S)
        return taken

    def _one(self, timeout: float) -> list[Request]:
        """The next request.  Raises queue.Empty."""
        try:
            worker, number, photo = self._requests.get(timeout=timeout)
        except (RuntimeError, OSError, EOFError):  # the tensor is of a process that has died
            return []
        return [QueueRequest(self._form, self._device, self._answers[worker], number, photo)]


def _transport(name: str, form: Form) -> Transport:
    asker, answerer = partial(QueueAsker, form), partial(QueueAnswerer, form)
    return Transport(name, ("torch",), lane, asker, answerer)


TRANSPORTS = (
    _transport("pickled arrays", Form(pickled, unpickled)),
    _transport("torch tensors", Form(same, same)),
)
