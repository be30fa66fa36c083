"""The interface of a way of passing photos and answers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

SLICE_S = 0.1
"""How long `take` waits at most."""
TAKE = 4
"""How many requests an engine takes at a time, at most."""


class NotAnswered(Exception):
    """A request that nobody will answer, or that could not be sent."""


@dataclass(frozen=True)
class Hands:
    """A worker's functions for photos and answers."""

    run: Callable[..., Awaitable[Any]]
    """Runs a function in a thread.  What waits for a GPU or copies much must not hold up the
    event loop."""
    encode: Callable[[Any], bytes]
    mark: Callable[[str], None]
    """Told that a stage of a request is over."""


@dataclass(frozen=True)
class Setting:
    """The setting of one run, which is the same for all ways."""

    device: str
    """"cuda" or "host"."""
    height: int
    width: int
    scale: int
    workers: int
    engines: int
    calls: int
    """Requests that one worker has in flight at most."""
    patience_s: float = 2.0
    """After so long without an answer a request has failed."""
    method: str = "forkserver"
    """How processes are started.  Those of a fork server need not import torch anew."""
    spin: bool = False
    """Whether a thread that waits for the GPU spins, as is CUDA's default.  Else it sleeps."""

    @property
    def request(self) -> tuple[int, int, int]:
        return self.height, self.width, 3

    @property
    def response(self) -> tuple[int, int, int]:
        return self.scale * self.height, self.scale * self.width, 3

    @property
    def torch_device(self) -> str:
        return "cuda" if self.device == "cuda" else "cpu"


class Asker:
    """A worker's end."""

    async def ask(self, photo: Any, hands: Hands) -> bytes:
        """Sends what the codec has decoded, and returns the answer, encoded."""
        raise NotImplementedError

    def close(self) -> None:
        """Called when nothing is in flight."""


class Request:
    """A request that an engine has taken."""

    def pixels(self) -> Any:
        """A torch tensor on the setting's device."""
        raise NotImplementedError

    def answer(self, large: Any) -> None:
        """Sends a torch tensor.  The request's pixels are no longer used."""
        raise NotImplementedError


class Answerer:
    """An engine's end."""

    def take(self) -> Sequence[Request]:
        """The requests that are there, at most TAKE.  Waits for SLICE_S if there is none."""
        raise NotImplementedError

    def close(self) -> None:
        """Called when nothing is in flight."""


@dataclass(frozen=True)
class Transport:
    """One way.  All callables are at module level, because other processes find them by name."""

    name: str
    needs: tuple[str, ...]
    """Modules without which this way is left out."""
    lane: Callable[[Setting], AbstractContextManager[Any]]
    """What workers and engines share.  It is made in the process that measures, which never
    touches a GPU, and may be something that can only be inherited."""
    asker: Callable[[Setting, Any, int], Asker]
    """From a lane and the worker's number."""
    answerer: Callable[[Setting, Any, int], Answerer]
    """From a lane and the engine's number."""
    keeper: Callable[[Setting, Any], AbstractContextManager[Any]] | None = None
    """Entered in a process of its own before the others start."""


def as_tensor(photo: Any, device: str) -> Any:
    """What the codec has decoded, as a torch tensor on the device.  It is no copy if it lies there
    already."""
    import numpy as np
    import torch

    if isinstance(photo, np.ndarray):
        return torch.tensor(photo, device=device)
    return torch.utils.dlpack.from_dlpack(photo)


class Waiting:
    """Futures of requests in flight, which a thread that receives answers resolves."""

    def __init__(self, receive: Callable[[], tuple[int, Any]]) -> None:
        """receive: waits for an answer.  It returns (the number that `open` gave, the answer)."""
        self._receive = receive
        self._futures: dict[int, concurrent.futures.Future[Any]] = {}
        self._numbers = itertools.count()
        threading.Thread(target=self._resolve, daemon=True).start()

    def open(self) -> tuple[int, asyncio.Future[Any]]:
        number, future = next(self._numbers), concurrent.futures.Future[Any]()
        self._futures[number] = future
        return number, asyncio.wrap_future(future)

    def _resolve(self) -> None:
        while True:
            try:
                number, answer = self._receive()
            except Exception:  # for example, the tensor is of a process that has died
                continue
            future = self._futures.pop(number, None)
            if future is not None and future.set_running_or_notify_cancel():
                future.set_result(answer)
            del future, answer  # otherwise they would be kept until the next answer
