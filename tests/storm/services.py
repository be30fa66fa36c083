"""Services under KILL, STOP, TERM and INT: engines and clients of every kind come, are hit and go.

    python -m tests.storm services --seconds 3600 --seed 1

A keeper holds the service.  Each client asks by threads, by tasks, by plain calls or for answers in
parts, checks every answer, and says how each call ended.  What is killed is replaced.  A signal
handler that raises (TERM: SystemExit, INT: KeyboardInterrupt) must end its process within a
deadline.  At the end nothing is left in /dev/shm, and nobody is in the rings.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import json
import logging
import os
import random
import secrets
import signal
import threading
import time
from collections import Counter
from typing import Any

import gpuring
from tests.helpers import loops
from tests.helpers.support import Child, Pipe, poll, segments_of
from tests.service import services

PATIENCE_S = 30
CALL_S = 20.0
SWALLOWED_S = 20.0
"""A child that says nothing for so long is told to end once more.  Where the handler raises in a
`__del__` or in the callback of a weak reference, Python prints the exception and goes on."""
ENDS = (gpuring.PeerLost, gpuring.RingTimeout, gpuring.CallFailed, gpuring.RingClosed)
ENGINES, CLIENTS = 2, 3
KINDS = ("calls", "threads", "tasks", "parts")
PARTS = 6


def begin(parent: int) -> None:
    """This process ends with its parent, and its handlers raise."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)

    def ended(number: int, _: Any) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit

    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGINT, ended)
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def engine(pipe: Pipe, name: str, parent: int, redeliver: bool, closes: bool) -> str:
    """Answers in batches, in any order, until it is hit; with `closes` it leaves in order."""
    begin(parent)
    chance = random.Random(os.getpid())
    try:
        server = services.serve(name, redeliver=redeliver)
        with server if closes else contextlib.nullcontext():
            pipe.send("up")
            while True:
                with contextlib.suppress(gpuring.RingTimeout):
                    calls = server.take(chance.randrange(1, 6), max_wait_s=0.001, timeout=0.1)
                    for call in chance.sample(calls, len(calls)):
                        if call.window:
                            stream(call)
                            continue
                        if chance.random() < 0.05:
                            call.answer().abandon()
                        services.answer(call)
    except (KeyboardInterrupt, SystemExit):
        return "hit"
    except gpuring.EndOfStream:
        return "end"


def stream(call: gpuring.Call) -> None:
    """Answers in parts, the last of which is the answer."""
    try:
        for k in range(PARTS):
            with call.part(1.0) as slot:
                slot.array[...] = services.answer_of(call.array) + k
        services.answer(call)
    except gpuring.RingFull:  # its client is stopped
        call.fail("it does not read")
    except gpuring.CallCancelled:
        pass


def client(pipe: Pipe, name: str, parent: int, kind: str) -> Counter[str]:
    """Asks until it is hit; then one more call, and how all its calls ended."""
    begin(parent)
    ends: Counter[str] = Counter()
    logging.getLogger("asyncio").disabled = True  # tasks that were hit, and nobody asked what of
    ours: list[gpuring.Client] = []
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        pipe.send("up")  # from now on it may be hit
        room = {"calls": 4, "parts": 2 if kind == "parts" else 0}
        ours.append(gpuring.connect(name, **room, timeout=PATIENCE_S, engine_s=PATIENCE_S))
        {
            "calls": ask_by_calls,
            "threads": ask_by_threads,
            "tasks": ask_by_tasks,
            "parts": ask_for_parts,
        }[kind](ours[0], ends)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    gc.collect()  # what an exception kept
    for each in ours:
        (ask_in_parts if kind == "parts" else ask)(each, ends, 7)
        poll(lambda each=each: each.in_flight == 0, PATIENCE_S)
        each.close()
    return ends


def ask(client: gpuring.Client, ends: Counter[str], k: int) -> None:
    try:
        services.ask(client, k, timeout=CALL_S)
    except ENDS as error:
        ends[type(error).__name__] += 1
    else:
        ends["answered"] += 1


def ask_by_calls(client: gpuring.Client, ends: Counter[str]) -> None:
    for k in range(10**9):
        if k % 5 == 4:
            services.send(client, k).cancel()
        ask(client, ends, k)


def ask_for_parts(client: gpuring.Client, ends: Counter[str]) -> None:
    for k in range(10**9):
        ask_in_parts(client, ends, k)


def ask_in_parts(client: gpuring.Client, ends: Counter[str], k: int) -> None:
    """Takes all parts of an answer, or leaves after some."""
    most, taken = (3 if k % 5 == 4 else 10**9), 0
    try:
        for part in services.send(client, k, timeout=CALL_S).parts(CALL_S):
            if taken == PARTS:
                services.check(client, k, part)
            else:
                right = services.answer_of(services.content(client.id, k)) + taken
                assert (part.array == right).all()
            taken += 1
            if taken == most:
                break
    except ENDS as error:
        ends[f"{type(error).__name__} of a stream"] += 1
    else:
        assert taken in (most, PARTS + 1)
        ends["streamed"] += 1


def ask_by_threads(client: gpuring.Client, ends: Counter[str]) -> None:
    over = threading.Event()

    def many(first: int) -> None:
        while not over.is_set():
            ask(client, ends, first)

    joins = [services.in_thread(many, first) for first in (1, 2)]
    try:
        ask_by_calls(client, ends)
    finally:
        over.set()
        for join in joins:
            join()


def ask_by_tasks(client: gpuring.Client, ends: Counter[str]) -> None:
    async def one(k: int) -> None:
        while True:
            try:
                with await client.request_async(CALL_S) as slot:
                    slot.array[...] = services.content(client.id, k)
                    slot.meta["k"] = k
                    call = slot.call
                with await call.result_async(CALL_S) as answer:
                    services.check(client, k, answer)
            except ENDS as error:
                ends[type(error).__name__] += 1
            else:
                ends["answered"] += 1

    async def main() -> None:
        await asyncio.gather(*(one(k) for k in range(8)))

    loops.run(main())


class Storm:
    def __init__(self, name: str, redeliver: bool, seed: int) -> None:
        self.name, self.redeliver = name, redeliver
        self.chance = random.Random(seed)
        self.there: list[tuple[str, Child]] = []
        self.events: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()

    def start(self, role: str) -> None:
        parent = os.getpid()
        if role == "engine":
            closes = self.chance.random() < 0.5
            child = Child(engine, (self.name, parent, self.redeliver, closes), 2 * PATIENCE_S)
        else:
            kind = self.chance.choice(KINDS)
            child = Child(client, (self.name, parent, kind), 2 * PATIENCE_S)
        self.there.append((role, child))

    def hit(self, role: str, child: Child, how: str) -> None:
        """Ends it; one that can say how its calls ended must, within the deadline."""
        self.events[f"{how} {role}"] += 1
        try:
            if how != "KILL":
                os.kill(child.pid, getattr(signal, f"SIG{how}"))
                if not child.pipe.poll(SWALLOWED_S):
                    os.kill(child.pid, getattr(signal, f"SIG{how}"))
                    self.events["sent again"] += 1
                try:
                    ended = child.result()
                except AssertionError:
                    os.kill(child.pid, signal.SIGUSR1)  # faulthandler says where it is
                    child.process.join(1)
                    raise
                if role == "client":
                    self.ends.update(ended)
        finally:
            child.end()

    def run(self, seconds: float) -> None:
        for role in ["engine"] * ENGINES + ["client"] * CLIENTS:
            self.start(role)
        until = time.monotonic() + seconds
        for _, child in self.there:
            services.up(child)
        while time.monotonic() < until:
            time.sleep(self.chance.random() * 0.2)
            role, child = self.there.pop(self.chance.randrange(len(self.there)))
            how = self.chance.choice(["KILL", "TERM", "INT", "STOP"])
            if how == "STOP":
                os.kill(child.pid, signal.SIGSTOP)
                time.sleep(self.chance.random() * 0.2)
                os.kill(child.pid, signal.SIGCONT)
                self.events[f"STOP {role}"] += 1
                self.there.append((role, child))
                continue
            self.hit(role, child, how)
            self.start(role)
            services.up(self.there[-1][1])
        self.there.sort(key=lambda each: each[0], reverse=True)
        while self.there:  # clients first
            self.hit(*self.there.pop(), "TERM")


def storm(seconds: float, seed: int, redeliver: bool = True) -> dict[str, Any]:
    """Runs and judges.  Raises AssertionError."""
    name = f"storm-{os.getpid()}-{secrets.token_hex(3)}"
    with services.serve(name, engine=False, redeliver=redeliver) as keeper:
        this = Storm(name, redeliver, seed)
        try:
            this.run(seconds)
        finally:
            for _, child in this.there:
                child.end()
        poll(lambda: keeper.ring._header.reap() or len(keeper.ring.stats().peers) == 2, PATIENCE_S)
    assert segments_of(name) == []
    assert this.ends["answered"] + this.ends["streamed"] > 0
    return {"events": dict(sorted(this.events.items())), "ends": dict(this.ends)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-redeliver", action="store_true")
    args = parser.parse_args()
    print(json.dumps(storm(args.seconds, args.seed, not args.no_redeliver), indent=1))
    return 0
