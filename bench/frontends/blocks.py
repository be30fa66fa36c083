"""ZeroMQ and shared memory: pixels lie in blocks of host memory, and messages say which block.

Each worker has blocks of multiprocessing.shared_memory.  A PUSH socket sends (worker, call, block)
to the engines in turn, and an engine sends the same back when it has written the answer into the
block (https://zguide.zeromq.org/docs/chapter1/#Divide-and-Conquer).  On a GPU all processes
register the blocks with CUDA (cudaHostRegister), which most programs do not do: copies are then
several times as fast, and need no work of a CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

from bench.frontends.transport import (
    SLICE_S,
    TAKE,
    Answerer,
    Asker,
    Hands,
    NotAnswered,
    Request,
    Setting,
    Transport,
    Waiting,
    as_tensor,
)

SPARE = 2
"""Blocks for each call of a worker: a request that is lost keeps its block."""

Lane = tuple[str, list[str]]


@contextmanager
def lane(setting: Setting) -> Iterator[Lane]:
    """Holds (a directory for sockets, the name of each worker's memory)."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuring-zmq-"))
        memories = []
        for _ in range(setting.workers):
            memory = SharedMemory(create=True, size=SPARE * setting.calls * _nbytes(setting))
            stack.callback(memory.unlink)
            stack.callback(memory.close)
            memories.append(memory.name)
        yield place, memories


def _nbytes(setting: Setting) -> int:
    height, width, colours = setting.request
    return height * width * colours * (1 + setting.scale**2)


def _blocks(setting: Setting, memory: SharedMemory) -> list[tuple[Any, Any]]:
    """(request, answer) of each block, as tensors."""
    import torch

    everything = torch.frombuffer(memory.buf, dtype=torch.uint8)
    if setting.device == "cuda":
        torch.cuda.init()
        size, pointer = everything.nbytes, everything.data_ptr()
        error = int(torch.cuda.cudart().cudaHostRegister(pointer, size, 0))
        if error:
            raise OSError(f"cudaHostRegister says {error}")
    height, width, colours = setting.request
    first = height * width * colours
    return [
        (block[:first].view(setting.request), block[first:].view(setting.response))
        for block in everything[: SPARE * setting.calls * _nbytes(setting)].split(_nbytes(setting))
    ]


def _socket(kind: str) -> Any:
    import zmq

    socket: Any = zmq.Context.instance().socket(getattr(zmq, kind))
    socket.linger = 0
    if kind == "PUSH":
        socket.immediate = True  # queues no message for a process that is not there
    return socket


def _settle(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.current_stream().synchronize()


class BlockAsker(Asker):
    def __init__(self, setting: Setting, lane: Lane, number: int) -> None:
        place, memories = lane
        self._device = setting.torch_device
        self._patience_s = setting.patience_s
        self._number = number
        self._memory = SharedMemory(memories[number])
        self._blocks = _blocks(setting, self._memory)
        self._free = list(range(len(self._blocks)))
        self._push, self._pull = _socket("PUSH"), _socket("PULL")
        self._pull.bind(f"ipc://{place}/worker{number}")
        for engine in range(setting.engines):
            self._push.connect(f"ipc://{place}/engine{engine}")
        self._waiting = Waiting(self._pull.recv_pyobj)

    async def ask(self, photo: Any, hands: Hands) -> bytes:
        import zmq

        if not self._free:
            raise NotAnswered("all blocks are lost")
        block = self._free.pop()
        number, answered = self._waiting.open()
        await hands.run(self._write, block, photo)
        try:
            self._push.send_pyobj((self._number, number, block), zmq.DONTWAIT)
        except zmq.Again:
            self._free.append(block)
            raise NotAnswered("no engine is connected") from None
        hands.mark("send")
        await asyncio.wait_for(answered, self._patience_s)  # if this raises, the block stays lost
        hands.mark("wait")
        encoded: bytes = await hands.run(self._encoded, block, hands.encode)
        self._free.append(block)
        return encoded

    def _write(self, block: int, photo: Any) -> None:
        self._blocks[block][0].copy_(as_tensor(photo, self._device), non_blocking=True)
        _settle(self._device)

    def _encoded(self, block: int, encode: Callable[[Any], bytes]) -> bytes:
        return encode(self._blocks[block][1].to(self._device, non_blocking=True))


class BlockRequest(Request):
    def __init__(self, device: str, block: tuple[Any, Any], done: Callable[[], None]) -> None:
        self._device, (self._photo, self._large), self._done = device, block, done

    def pixels(self) -> Any:
        return self._photo.to(self._device, non_blocking=True)

    def answer(self, large: Any) -> None:
        self._large.copy_(large, non_blocking=True)
        _settle(self._device)
        self._done()


class BlockAnswerer(Answerer):
    def __init__(self, setting: Setting, lane: Lane, number: int) -> None:
        place, memories = lane
        self._device = setting.torch_device
        self._memories = [SharedMemory(name) for name in memories]
        self._blocks = [_blocks(setting, memory) for memory in self._memories]
        self._pull = _socket("PULL")
        self._pull.bind(f"ipc://{Path(place, f'engine{number}')}")
        self._pushes = [_socket("PUSH") for _ in memories]
        for worker, push in enumerate(self._pushes):
            push.connect(f"ipc://{place}/worker{worker}")

    def take(self) -> Sequence[Request]:
        import zmq

        taken: list[Request] = []
        while len(taken) < TAKE and self._pull.poll(0 if taken else int(1000 * SLICE_S)):
            worker, number, block = self._pull.recv_pyobj()

            def done(push: Any = self._pushes[worker], answer: Any = (number, None)) -> None:
                with contextlib.suppress(zmq.Again):  # the worker is dead
                    push.send_pyobj(answer, zmq.DONTWAIT)

            taken.append(BlockRequest(self._device, self._blocks[worker][block], done))
        return taken


TRANSPORT = Transport("ZeroMQ and shared memory", ("torch", "zmq"), lane, BlockAsker, BlockAnswerer)
