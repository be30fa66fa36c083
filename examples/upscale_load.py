"""The load test of upscale_frontends.py: it makes photos, and checks every answer."""

import asyncio
import itertools
import os
import re
import sys
import time

import numpy as np
import upscale_frontends as front
from PIL import Image

CONNECTIONS, DEADLINE_S = 8, 100
FAR = 4.0  # a mean difference of pixels that two codecs do not make
KNOWN = 20  # right answers to a photo that are kept


def photos(count, height, width):
    """JPEGs with soft colours and some grain, like photos."""
    dice = np.random.default_rng(0)
    for _ in range(count):
        colours = dice.integers(0, 256, (6, 9, 3)).astype("u1")
        soft = Image.fromarray(colours).resize((width, height))
        grain = dice.normal(0, 5, (height, width, 1))
        yield front.encode_on_cpu((np.asarray(soft) + grain).clip(0, 255).astype("u1"))


class Answers:
    """Compares each answer with this process's own, which is made with Pillow and on the CPU."""

    def __init__(self, jpegs, scale=front.SCALE):
        import torch

        enlarge = front.model("host", scale)
        torch.set_num_threads(os.cpu_count() or 1)
        wanted = (enlarge(torch.tensor(front.decode_on_cpu(each))) for each in jpegs)
        self.wanted = [each.numpy().astype("i2") for each in wanted]
        self.right = [[] for _ in jpegs]

    def is_right(self, n, answer):
        """Whether the answer is one to photo n.  The bytes of a right answer are not decoded
        again."""
        if answer in self.right[n]:
            return True
        pixels, wanted = front.decode_on_cpu(answer), self.wanted[n]
        right = pixels.shape == wanted.shape and np.abs(pixels - wanted).mean() < FAR
        if right:
            self.right[n] = [*self.right[n][-KNOWN:], answer]
        return bool(right)


class Load:
    """Connections that each post a photo, check the answer, and post the next one."""

    def __init__(self, address, jpegs, answers):
        self.address, self.jpegs, self.answers = address, jpegs, answers
        self.took_ms, self.pids = [], set()
        self.wrong = self.refused = self.again = 0

    async def run(self, seconds, everybody=frozenset, connections=CONNECTIONS):
        """Runs for so long, and until all workers that `everybody` names have answered."""
        self.until, self.everybody = time.monotonic() + seconds, everybody
        tasks = map(self.connection, range(connections))
        await asyncio.wait_for(asyncio.gather(*tasks), seconds + DEADLINE_S)
        return self

    async def connection(self, first):
        reader = writer = None
        for n in itertools.count(first):
            n %= len(self.jpegs)  # noqa: PLW2901
            begun, answer = time.monotonic(), None
            while answer is None:
                try:
                    if writer is None:
                        reader, writer = await asyncio.open_connection(*self.address)
                    head = f"POST / HTTP/1.1\r\nHost: front\r\nContent-Length: {len(self.jpegs[n])}"
                    writer.write(f"{head}\r\n\r\n".encode() + self.jpegs[n])
                    answer = await self.read_answer(reader)
                except (OSError, EOFError):  # its worker was killed
                    self.again, writer = self.again + 1, None
                else:
                    if answer is None:
                        self.refused += 1
                        await asyncio.sleep(0.05)
            self.took_ms.append(1000 * (time.monotonic() - begun))
            self.wrong += not self.answers.is_right(n, answer)
            over = time.monotonic() > self.until and self.everybody() <= self.pids
            if over or n == 0:  # now and then a connection to another worker
                writer.close()
                writer = None
            if over:
                return

    async def read_answer(self, reader):
        """The answer, or None if it is a refusal."""
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
        if not head.startswith(b"HTTP/1.1 200"):
            return None
        self.pids.add(int(re.search(rb"x-pid: (\d+)", head)[1]))
        return body


def test(address, crew, jpegs, answers, seconds):
    """Measures, then kills a worker and an engine.  Returns whether an answer was wrong or
    refused."""

    def everybody():
        return {crew[k].pid for k in range(front.WORKERS)}

    async def with_deaths(load):
        victims = crew[0], crew[front.WORKERS]
        for each in victims:
            asyncio.get_running_loop().call_later(seconds / 2, each.kill)
        await load.run(seconds, lambda: everybody() - {each.pid for each in victims})
        return [each.pid for each in victims]

    first, load, killed = (Load(address, jpegs, answers) for _ in range(3))
    try:
        while not crew:
            time.sleep(0.05)  # its keeper is just starting it
        asyncio.run(first.run(0, everybody))  # until everybody is there
        asyncio.run(load.run(seconds))
        p50, p99 = np.percentile(load.took_ms, [50, 99])
        print(f"load      {len(load.took_ms) / seconds:.0f} requests/s,", end=" ")
        print(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)
        worker, engine = asyncio.run(with_deaths(killed))
    except asyncio.TimeoutError:
        sys.exit(f"not every worker has answered, or not every request, in {DEADLINE_S} s")
    print(f"killed    worker {worker} and engine {engine}; {len(killed.took_ms)} requests", end=" ")
    print(f"meanwhile, {killed.again} of them sent again,", end=" ")
    print(f"the longest took {max(killed.took_ms):.0f} ms")
    runs = first, load, killed
    answered, wrong = sum(len(each.took_ms) for each in runs), sum(each.wrong for each in runs)
    refused = load.refused + killed.refused  # before, engines were still starting
    print(f"in all    {answered} answers, {wrong} of them wrong, {refused} refusals")
    return bool(wrong or refused)


if __name__ == "__main__":
    sys.exit("usage: python examples/upscale_frontends.py [SECONDS]")
