"""Programs in Python at the other end of a ring on a GPU.

They run in processes of their own, which may have a driver without a GPU.
"""

from __future__ import annotations

import ctypes
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np

import gpuring
from gpuring.memory import driver as cuda
from gpuring.memory import gpus
from gpuring.native.gpu import PinnedBuffer, Stream
from tests.helpers.processes import PATIENCE_S, Pipe, poll

Picture = dict[str, Any]
META = [("pts", "i8"), ("duration", "i8"), ("caps", "S512")]


def hide_cupy(driver: str) -> None:
    """Hides CuPy, which would ask the driver without a GPU for functions that it does not have."""
    if driver == "fake":
        sys.modules["cupy"] = None


class Latch:
    """Holds what is put into the stream from now on, until it is opened."""

    def __init__(self, stream: Stream) -> None:
        self._buffer = PinnedBuffer(gpus.gpu(0), 8)
        self._word = np.frombuffer(self._buffer, "u8")
        self._word[0] = 0
        at, to = ctypes.c_uint64(self._buffer.handle), ctypes.c_uint64(1)
        with gpus.current(0):
            cuda.call("cuStreamWaitValue64_v2", ctypes.c_void_p(stream.handle), at, to, 0)

    def open(self) -> None:
        self._word[0] = 1


def frames_of(ring: gpuring.Ring, consumer: Any) -> Iterator[tuple[Picture, int, str]]:
    """The frames as they are on the GPU, each with its pts and caps."""
    stream = Stream(gpus.gpu(0))
    names = [field.name for field in ring.spec.fields]
    while True:
        try:
            slot = consumer.acquire(PATIENCE_S, stream=stream.handle)
        except gpuring.EndOfStream:
            return
        picture = {}
        for field in ring.spec.fields:
            picture[field.name] = np.empty(field.shape, field.dtype)
            slot.copy_to(picture[field.name], field=field.name if len(names) > 1 else None)
        told = picture, int(slot.meta["pts"]), slot.meta["caps"].decode()
        slot.release()
        yield told


def read_all(pipe: Pipe, driver: str, name: str) -> list[tuple[Picture, int, str]]:
    """Sends the ring's kind of memory, and returns all frames."""
    hide_cupy(driver)
    with gpuring.attach(name, timeout=PATIENCE_S, device="cuda") as ring, ring.consumer() as frames:
        pipe.send(ring.memory)
        return list(frames_of(ring, frames))


def read_told_gpu(pipe: Pipe, driver: str, name: str) -> int:
    """Sends the last byte of the UUID of the ring's GPU, and reads all frames."""
    hide_cupy(driver)
    with gpuring.attach(name, timeout=PATIENCE_S, device="cuda") as ring, ring.consumer() as frames:
        pipe.send(uuid.UUID(ring.stats().gpu).bytes[-1])
        return len(list(frames_of(ring, frames)))


def read_until_lost(pipe: Pipe, driver: str, name: str) -> None:
    """Sends the first frames, and then how the stream ended."""
    hide_cupy(driver)
    with gpuring.attach(name, timeout=PATIENCE_S, device="cuda") as ring, ring.consumer() as frames:
        try:
            for n, _ in enumerate(frames_of(ring, frames)):
                if n == 10:
                    pipe.send("frames")
            pipe.send("end")
        except gpuring.RingError as error:
            pipe.send(type(error).__name__)


def put(producer: Any, stream: Stream, picture: Picture, pts: int, caps: str) -> None:
    with producer.claim(PATIENCE_S, stream=stream.handle) as slot:
        for field, array in picture.items():
            slot.copy_from(array, field=field if len(picture) > 1 else None)
        slot.meta["pts"], slot.meta["duration"], slot.meta["caps"] = pts, -1, caps.encode()


def write_all(
    pipe: Pipe, driver: str, name: str, memory: str, sent: list[Picture], caps: str
) -> None:
    """Makes the ring, and waits for its reader."""
    hide_cupy(driver)
    fields = {each: (array.shape, array.dtype) for each, array in sent[0].items()}
    with gpuring.create(
        name, slots=4, fields=fields, meta=META, device="cuda", memory=memory
    ) as ring, ring.producer() as producer:  # fmt: skip
        pipe.send()
        poll(lambda: ring.stats().subscriptions)
        stream = Stream(gpus.gpu(0))
        for k, picture in enumerate(sent):
            put(producer, stream, picture, k * 40_000_000, caps)


def read_late(pipe: Pipe, driver: str, name: str, slots: int) -> list[tuple[Picture, int, str]]:
    """Releases a frame of each slot while its stream is held.  Returns the frames behind these."""
    hide_cupy(driver)
    with gpuring.attach(name, timeout=PATIENCE_S, device="cuda") as ring, ring.consumer() as frames:
        stream = Stream(gpus.gpu(0))
        latch = Latch(stream)
        for _ in range(slots):
            frames.acquire(PATIENCE_S, stream=stream.handle).release()
        pipe.ask()
        latch.open()
        return list(frames_of(ring, frames))


def write_late(pipe: Pipe, driver: str, name: str, shape: tuple[int, ...], byte: int) -> None:
    """Publishes two frames.  Its stream writes the second one only when the test says so."""
    hide_cupy(driver)
    with gpuring.create(
        name, slots=4, shape=shape, dtype="u1", device="cuda"
    ) as ring, ring.producer() as producer:  # fmt: skip
        pipe.send()
        poll(lambda: ring.stats().subscriptions)
        stream = Stream(gpus.gpu(0))

        def fill() -> None:
            with producer.claim(PATIENCE_S, stream=stream.handle) as slot:
                at = slot.__cuda_array_interface__["data"][0]
                gpus.gpu(0).fill(at, byte, int(np.prod(shape)), stream.handle)

        def taken() -> int:
            return sum(each.frames for each in ring.stats().peers if each.role == "consumer")

        fill()
        poll(lambda: taken() == 1)
        latch = Latch(stream)
        fill()
        poll(lambda: taken() == 2)
        pipe.ask()
        latch.open()
