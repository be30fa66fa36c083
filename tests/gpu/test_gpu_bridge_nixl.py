"""Whole bridges over NIXL between rings on GPUs of one host, in each kind of memory.

Every word of every frame is checked on the GPU of the reader.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import gpuring
from gpuring.memory import kinds
from tests.helpers.processes import poll

pytest.importorskip("zmq", reason="bridges need pyzmq")

from gpuring import bridge
from gpuring.bridge.engines import nixl
from gpuring.bridge.importer import supervisor

pytestmark = [pytest.mark.gpu, pytest.mark.deadline(300)]
if nixl.facts() is None:
    pytest.skip("NIXL is not installed", allow_module_level=True)

WORDS = (4 << 20) // 8 + 1  # a slot is a little longer than a frame
WAIT_S = 60.0
SLOTS = 8


@pytest.fixture(params=[(0, 0), (0, 1)], ids=["one-gpu", "two-gpus"])
def gpus(request: pytest.FixtureRequest) -> tuple[int, int]:
    """The GPUs of the near ring and of the far one."""
    import cupy

    if max(request.param) >= cupy.cuda.runtime.getDeviceCount():
        pytest.skip("needs two GPUs")
    places: tuple[int, int] = request.param
    return places


@pytest.fixture(params=kinds.ON_GPU)
def kind(
    request: pytest.FixtureRequest, gpus: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> str:
    """The kind of memory of both rings.  An importer has no option for it, so its default is
    changed."""
    for gpu in gpus:
        able, why = kinds.supported(request.param, gpu)
        if not able:
            pytest.skip(why)
    made = partial(supervisor.create_of, memory=request.param)
    monkeypatch.setattr(supervisor, "create_of", made)
    kind: str = request.param
    return kind


@dataclass
class Stream:
    """A ring on a GPU, its bridge, and a reader of the far ring."""

    producer: gpuring.Producer
    frames: gpuring.Consumer
    out: bridge.Export
    into: bridge.Import
    gpus: tuple[int, int]

    @property
    def engine(self) -> str:
        return self.into.stats().links[0].engine

    def put(self, count: int) -> Callable[[], None]:
        """Publishes frames in another thread.  Returns what waits for its end."""
        import cupy

        from tests.gpu import kernels

        failed: list[BaseException] = []

        def run() -> None:
            try:
                with cupy.cuda.Device(self.gpus[0]):
                    for n in range(count):
                        with self.producer.claim(WAIT_S) as slot:
                            kernels.stamp(slot.array, n, None)
                            slot.meta["n"] = n
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def wait() -> None:
            thread.join(WAIT_S)
            assert not thread.is_alive()
            assert not failed, failed

        return wait

    def take(self, count: int, taken: Callable[[int], Any] = lambda n: None) -> None:
        """Takes frames 0, 1, … and checks every word."""
        import cupy

        from tests.gpu import kernels

        with cupy.cuda.Device(self.gpus[1]):
            wrong = kernels.counter()
            for n in range(count):
                with self.frames.acquire(WAIT_S) as slot:
                    assert int(slot.meta["n"]) == n
                    kernels.check(slot.array, n, wrong, None)
                taken(n)
            assert int(wrong.get()[0]) == 0


@contextlib.contextmanager
def stream(name: str, kind: str, gpus: tuple[int, int], engine: Any) -> Iterator[Stream]:
    import cupy

    from tests.gpu import kernels

    for gpu in gpus:
        with cupy.cuda.Device(gpu):
            kernels.warm_up()
    (near, far), here = (f"cuda:{gpu}" for gpu in gpus), f"{name}.far"
    options: Any = {"slots": SLOTS, "shape": WORDS, "dtype": "u8", "meta": [("n", "i8")]}
    with (
        gpuring.create(name, device=near, memory=kind, **options) as ring,
        ring.producer() as producer,
        bridge.export(name, listen="127.0.0.1:0", device=near) as out,
        bridge.import_(
            f"{poll(lambda: out.address)}/{name}", name=here, device=far, slots=SLOTS, engine=engine
        ) as into,
        gpuring.attach(here, timeout=WAIT_S, device=far) as there,
        there.consumer(start="oldest") as frames,
    ):
        assert there.memory == kind
        poll(lambda: connected(into))
        yield Stream(producer, frames, out, into, gpus)


def connected(into: bridge.Import) -> bool:
    with contextlib.suppress(gpuring.RingError):  # its worker is being started
        return any(link.connected for link in into.stats().links)
    return False


@pytest.mark.parametrize("engine", ["auto", "nixl"])
def test_frames_go_from_gpu_to_gpu(name, kind, gpus, engine):
    with stream(name, kind, gpus, engine) as over:
        if engine == "auto":
            assert over.engine.startswith("nixl (both sides are on one host, with a bounce")
        else:
            assert over.engine == "nixl (it was asked for)"
        wait = over.put(200)
        over.take(200)
        wait()


def test_workers_that_are_killed_with_transfers_in_flight_cost_no_frame(name, kind, gpus):
    """The reader goes on reading when they are killed, so frames are on their way."""
    kills = {100: "out", 200: "into", 300: "out", 400: "into"}
    with stream(name, kind, gpus, "auto") as over:

        def kill(n: int) -> None:
            if n not in kills:
                return
            side: Any = getattr(over, kills[n])
            was = poll(lambda: side.pid)
            os.kill(was, signal.SIGKILL)

        wait = over.put(500)
        over.take(500, kill)
        wait()
        assert over.engine.startswith("nixl (")
