"""The load test of inference_frontends.py: it checks every answer, and runs the usual way as well.

The usual way: the same workers, engines and batches over queues of multiprocessing, one for all
requests and one for each worker's answers.  They pickle the arrays.
"""

import asyncio
import concurrent.futures
import io
import itertools
import json
import os
import queue
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import inference_frontends as front
import numpy as np
from crew import SPAWN
from PIL import Image

CONNECTIONS, REQUESTS_EACH = 16, 50  # connections at a time, and requests over each
TURNS, DEADLINE_S, TOLERANCE = 5, 60, 1e-3


def usual_roles(listening, device):
    requests = SPAWN.Queue(front.SLOTS)
    answers = [SPAWN.Queue() for _ in range(front.WORKERS)]
    workers = [(usual_worker, listening, k, requests, each) for k, each in enumerate(answers)]
    return workers + [(usual_engine, device, requests, answers)] * front.ENGINES


def usual_worker(listening, number, requests, answers):
    waiting, numbers = {}, itertools.count()

    def receive():
        while True:
            call, *answer = answers.get()
            waiting.pop(call).set_result(answer)

    async def ask(pixels):
        call, future = next(numbers), concurrent.futures.Future()
        waiting[call] = future
        requests.put_nowait((number, call, pixels))
        return await asyncio.wait_for(asyncio.wrap_future(future), front.PATIENCE_S)

    threading.Thread(target=receive, daemon=True).start()
    front.serve_http(listening, ask)


def usual_engine(device, requests, answers):
    import torch

    classify = front.model()
    while True:
        calls, until = [requests.get()], time.monotonic() + front.MAX_WAIT_S
        with suppress(queue.Empty):
            while len(calls) < front.MAX_BATCH:
                calls.append(requests.get(timeout=max(0, until - time.monotonic())))
        images = torch.from_numpy(np.stack([pixels for _, _, pixels in calls]))
        images = images if device == "host" else images.to(device)
        for (worker, call, _), scores in zip(calls, classify(images).cpu().numpy(), strict=True):
            answers[worker].put((call, scores, os.getpid()))


def questions():
    """(what to send, the class, its score): pictures of nine colours as JPEG and as JSON."""
    import torch

    classify, dice = front.model(), np.random.default_rng(0)
    for n in range(16):
        picture = Image.fromarray(dice.integers(0, 256, (3, 3, 3)).astype("u1"))
        if n % 4:
            kind, file = "image/jpeg", io.BytesIO()
            picture.resize((front.SIDE, front.SIDE)).save(file, "JPEG")
            body = file.getvalue()
        else:
            kind, pixels = "application/json", np.asarray(picture.resize((12, 12)))
            body = json.dumps({"pixels": pixels.tolist()}).encode()
        head = f"POST / HTTP/1.1\r\nHost: front\r\nContent-Type: {kind}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        (scores,) = classify(torch.from_numpy(front.pixels_of(kind, body)[None].copy()))
        yield head.encode() + body, int(scores.argmax()), float(scores.max())


class Load:
    """Connections that ask, check the answer, and ask the next question.  Counts what comes of
    it."""

    def __init__(self, listening, crew, asked):
        self.address, self.crew, self.asked = listening.getsockname(), crew, asked
        self.took_ms, self.handed_ms, self.pids = [], [], set()
        self.wrong = self.refused = self.again = 0
        self.seconds = self.crew_s = self.client_s = 0

    def run(self, seconds, victims=()):
        """Runs for so long, and until every process has answered.  The victims are killed half-
        way."""
        self.victims, begun, cpu_s = victims, time.monotonic(), time.thread_time()
        self.until = begun + seconds
        try:
            asyncio.run(asyncio.wait_for(self.connections(seconds / 2), seconds + DEADLINE_S))
        except asyncio.TimeoutError:
            sys.exit(f"not every process has answered, or not every request, in {DEADLINE_S} s")
        self.seconds += time.monotonic() - begun
        self.client_s += time.thread_time() - cpu_s
        return self

    async def connections(self, delay_s):
        for each in self.victims:
            asyncio.get_running_loop().call_later(delay_s, each.kill)
        await asyncio.gather(*map(self.connection, range(CONNECTIONS)))

    def is_over(self):
        crew = list(self.crew.values())
        everybody = len(crew) == front.WORKERS + front.ENGINES and not {*crew} & {*self.victims}
        return time.monotonic() > self.until and everybody and {p.pid for p in crew} <= self.pids

    async def connection(self, first):
        reader = writer = None
        for n in itertools.count(first):
            over = self.is_over()
            if writer and (over or n % REQUESTS_EACH == 0):
                writer.close()
                writer = None
            if over:
                return
            request, best, score = self.asked[n % len(self.asked)]
            begun, answer = time.monotonic(), None
            while answer is None:
                try:
                    if writer is None:
                        reader, writer = await asyncio.open_connection(*self.address)
                    writer.write(request)
                    answer = await read_answer(reader)
                except (OSError, EOFError):  # its worker was killed
                    self.again, writer = self.again + 1, None
                else:
                    if answer is None:
                        self.refused += 1
                        await asyncio.sleep(0.05)
            self.took_ms.append(1000 * (time.monotonic() - begun))
            self.handed_ms.append(answer["took_ms"])
            self.pids.update(answer["pids"])
            self.wrong += answer["class"] != best or abs(answer["score"] - score) > TOLERANCE


async def read_answer(reader):
    """The answer, or None if it is a refusal."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head)[1])
    body = await reader.readexactly(length)
    return json.loads(body) if head.startswith(b"HTTP/1.1 200") else None


def cpu_seconds(crew):
    """The CPU time of these processes so far."""
    stats = [Path(f"/proc/{each.pid}/stat").read_text() for each in crew.values()]
    ticks = [sum(map(int, each.rsplit(")")[-1].split()[11:13])) for each in stats]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def compare(ring, usual, seconds):
    """Compares two (listening, crew).  Some of the ring's processes are killed.  Returns whether
    anything was lost."""
    asked = list(questions())
    for each in ring, usual:
        Load(*each, asked).run(0)  # until everybody is there
    loads = {"ring": Load(*ring, asked), "queues": Load(*usual, asked)}
    for each in [*loads.values()] * TURNS:
        before_s = cpu_seconds(each.crew)
        each.run(seconds / TURNS)
        each.crew_s += cpu_seconds(each.crew) - before_s
    report(loads)
    crew = ring[1]
    worker, engine = crew[0], crew[len(crew) - 1]
    killed = Load(*ring, asked).run(seconds, [worker, engine])
    print(f"killed    worker {worker.pid} and engine {engine.pid}, others have taken their places;")
    print(
        f"          {len(killed.took_ms)} requests meanwhile, {killed.again} of them sent again,",
        end=" ",
    )
    print(f"the longest took {max(killed.took_ms):.0f} ms")
    runs = [*loads.values(), killed]
    answers, wrong = sum(len(each.took_ms) for each in runs), sum(each.wrong for each in runs)
    refused = sum(each.refused for each in runs)
    print(f"in all    {answers} answers, {wrong} of them wrong, {refused} refusals")
    return bool(wrong or refused)


def report(loads):
    """The hand-over is from the request written to the answer read, in the worker."""
    print("          requests/s   latency p50    p99   hand-over p50    p99   CPU, all in ms")
    rows = []
    for name, load in loads.items():
        n = len(load.took_ms)
        row = [n / load.seconds, *np.percentile(load.took_ms, [50, 99])]
        row += [*np.percentile(load.handed_ms, [50, 99]), 1000 * load.crew_s / n]
        rows.append(row)
        print("{:9} {:10.0f} {:13.1f} {:6.1f} {:15.1f} {:6.1f} {:5.2f}".format(name, *row))
    ratio = np.divide(*rows)
    print("{:9} {:10.2f} {:13.2f} {:6.2f} {:15.2f} {:6.2f} {:5.2f}".format("ratio", *ratio))
    client = sum(each.client_s for each in loads.values())
    asked = sum(len(each.took_ms) for each in loads.values())
    print(f"client    {1000 * client / asked:.2f} ms of CPU a request, beside that")


if __name__ == "__main__":
    sys.exit("usage: python examples/inference_frontends.py [SECONDS]")
