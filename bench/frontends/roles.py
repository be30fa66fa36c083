"""The processes: workers and engines, the same for all ways of passing photos."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.frontends import example, light, ways
from bench.frontends.transport import Hands, Setting
from gpuring.cli.measure.crew import Pipe

READY, END, STAGES = "ready", "end", "stages"
PHOTOS, FRAMES = "photos", "frames"
"""What requests are.  `light` has what is done with frames."""
KNOWN = 8
"""Different answers to a photo that a worker keeps, to be checked after the clock has stopped."""


class Clock:
    """The seconds of each stage, and those of the CPU, while it is on.  The GPU is then waited for
    after each stage, so the figures add up, and are those of one request at a time."""

    def __init__(self, device: str) -> None:
        self.on = False
        self._on_gpu = device == "cuda"
        self._since = 0.0
        self._cpu_since = 0.0
        self._stages: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)

    def start(self) -> None:
        if self.on:
            self._settle()
            self._since, self._cpu_since = time.perf_counter(), time.process_time()

    def mark(self, stage: str) -> None:
        if self.on:
            self._settle()
            now, cpu = time.perf_counter(), time.process_time()
            self._stages[stage].append((now - self._since, cpu - self._cpu_since))
            self._since, self._cpu_since = now, cpu

    def taken(self) -> dict[str, list[tuple[float, float]]]:
        stages, self._stages = dict(self._stages), collections.defaultdict(list)
        return stages

    def _settle(self) -> None:
        if self._on_gpu:
            import cupy

            cupy.cuda.Device().synchronize()


def keeper(pipe: Pipe, way: str, lane: Any, setting: Setting) -> None:
    """Keeps what a way needs during the run, until it gets the order to end."""
    keep = ways()[way].keeper
    with keep(setting, lane) if keep else contextlib.nullcontext():
        pipe.send(READY)
        pipe.receive()


def engine(pipe: Pipe, way: str, lane: Any, setting: Setting, number: int) -> None:
    """An engine: answers requests.  Its orders are (STAGES, whether the clock runs, PHOTOS or
    FRAMES) answers with the stages since the last one; END."""
    import torch

    front = example("upscale_frontends")
    _wait_asleep(setting)
    models = {PHOTOS: front.model(setting.device, setting.scale), FRAMES: light.model(setting)}
    for each in models.values():
        each(torch.zeros(setting.request, dtype=torch.uint8, device=setting.torch_device))
    enlarge = models[PHOTOS]
    clock = Clock(setting.device)
    answerer = ways()[way].answerer(setting, lane, number)
    pipe.send(READY)
    while True:
        if pipe.told():
            order, *more = pipe.receive()
            if order == END:
                break
            pipe.send(clock.taken())
            clock.on, work = more
            enlarge = models[work]
        for request in answerer.take():
            clock.start()
            photo = request.pixels()
            clock.mark("engine takes")
            large = enlarge(photo)
            clock.mark("model")
            request.answer(large)
            clock.mark("engine answers")
            del photo, large  # a tensor of another process goes back to it now
    answerer.close()


def worker(pipe: Pipe, way: str, lane: Any, setting: Setting, number: int) -> None:
    """A worker: lets engines enlarge photos.  Its orders are (PHOTOS, …), (FRAMES, …) and ("http",
    …), which are for the functions below, and END."""
    front = example("upscale_frontends")
    jpegs = pipe.receive()
    _wait_asleep(setting)
    codec, decode, encode = front.codec(setting.device)
    asker = ways()[way].asker(setting, lane, number)
    with ThreadPoolExecutor(setting.calls) as threads:
        for done in [threads.submit(_both, decode, encode, jpegs[0]) for _ in range(setting.calls)]:
            done.result()
        pipe.send((READY, codec))
        work = _Work(pipe, asker, jpegs, threads, decode, encode, setting, number)
        works = {PHOTOS: work}
        while True:
            order, *more = pipe.receive()
            if order == END:
                break
            if order == FRAMES and FRAMES not in works:
                decode, encode = light.codec(setting, len(jpegs))
                named = [b"%d" % n for n in range(len(jpegs))]
                works[FRAMES] = _Work(
                    pipe, asker, named, threads, decode, encode, setting, number, decoding=False
                )
            if order in (PHOTOS, FRAMES):
                pipe.send(works[order].files(*more))
            else:
                work.http(*more)
                pipe.send()
    asker.close()


def _wait_asleep(setting: Setting) -> None:
    """Makes threads of this process sleep while they wait for the GPU.  Called before its first
    use."""
    if setting.device == "cuda" and not setting.spin:
        from cuda.bindings import driver

        driver.cuInit(0)
        asleep = driver.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC.value
        (error,) = driver.cuDevicePrimaryCtxSetFlags(0, asleep)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise OSError(f"cuDevicePrimaryCtxSetFlags says {error}")


def _both(decode: Any, encode: Any, jpeg: bytes) -> None:
    encode(decode(jpeg))


class _Work:
    def __init__(
        self, pipe: Pipe, asker: Any, jpegs: list[bytes], threads: ThreadPoolExecutor,
        decode: Any, encode: Any, setting: Setting, number: int, decoding: bool = True,
    ) -> None:  # fmt: skip
        """decoding: whether `decode` takes so long that it needs a thread."""
        self._pipe, self._asker, self._jpegs, self._threads = pipe, asker, jpegs, threads
        self._decode, self._decoding = decode, decoding
        self._clock = Clock(setting.device)
        self._hands = Hands(self._run, encode, self._clock.mark)
        self._number, self._calls = number, setting.calls

    async def _run(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def _enlarged(self, jpeg: bytes) -> bytes:
        self._clock.start()
        photo = await self._run(self._decode, jpeg) if self._decoding else self._decode(jpeg)
        self._clock.mark("decode")
        answer: bytes = await self._asker.ask(photo, self._hands)
        self._clock.mark("encode")
        return answer

    def files(self, seconds: float, calls: int, stages: bool) -> dict[str, Any]:
        """Takes the photos in turn, with so many requests in flight.  Returns lists of when each
        answer came and how long it took in seconds, failures by name, answers by photo, stages."""
        self._clock.on = stages
        ended: list[float] = []
        took: list[float] = []
        failed: collections.Counter[str] = collections.Counter()
        answers: list[list[bytes]] = [[] for _ in self._jpegs]
        unchecked = 0
        until, turns = time.monotonic() + seconds, itertools.count(self._number)

        async def one() -> None:
            nonlocal unchecked
            while (begun := time.monotonic()) < until:
                n = next(turns) % len(self._jpegs)
                try:
                    answer = await self._enlarged(self._jpegs[n])
                except Exception as error:  # each way raises errors of its own
                    failed[type(error).__name__] += 1
                    await asyncio.sleep(0.02)
                    continue
                ended.append(time.monotonic())
                took.append(ended[-1] - begun)
                if answer not in answers[n]:
                    if len(answers[n]) < KNOWN:
                        answers[n].append(answer)
                    else:
                        unchecked += 1

        async def main() -> None:
            await asyncio.gather(*(one() for _ in range(calls)))

        asyncio.run(main())
        return {
            "ended": ended, "took": took, "failed": dict(failed), "answers": answers,
            "unchecked": unchecked, "stages": self._clock.taken(),
        }  # fmt: skip

    def http(self, listening: socket.socket) -> None:
        """Serves until the next order comes.  With more connections than calls, some wait."""
        front, room = example("upscale_frontends"), asyncio.Semaphore(self._calls)

        async def enlarged(jpeg: bytes) -> bytes:
            async with room:
                return await self._enlarged(jpeg)

        uvicorn, application = front.uvicorn, front.application(enlarged)
        server = uvicorn.Server(uvicorn.Config(application, log_level="error", access_log=False))

        async def main() -> None:
            serving = asyncio.create_task(server.serve([listening]))
            while not self._pipe.told():
                await asyncio.sleep(0.05)
            self._pipe.receive()
            server.should_exit = True
            await serving

        asyncio.run(main())
