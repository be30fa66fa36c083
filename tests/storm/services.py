"""Services under KILL, STOP, TERM and INT: engines and clients of every kind come, are hit and go.

A keeper holds the service.  Each client asks by threads, by tasks, by plain calls or for answers in
parts, checks every answer, and says how each call ended.  What is killed is replaced.  A signal
handler that raises (TERM: SystemExit, INT: KeyboardInterrupt) must end its process within a
deadline.  At the end nothing is left in /dev/shm, and nobody is in the rings.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import random
import signal
import threading
from collections import Counter
from typing import Any

import gpuring
from tests.helpers import loops
from tests.helpers.processes import Child, Pipe, die_with, poll
from tests.service import services
from tests.storm.harness import SIGNALS, Failed, Storm

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
    """Lets this process end with its parent, and its signal handlers raise."""
    die_with(parent)

    def ended(number: int, _: Any) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit

    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGINT, ended)
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def engine(pipe: Pipe, name: str, parent: int, redeliver: bool, closes: bool) -> str:
    """Answers in batches, in any order, until it is hit.  With `closes` it leaves cleanly."""
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
    """Makes calls until it is hit, and then one more.  Sends how all its calls ended."""
    begin(parent)
    ends: Counter[str] = Counter()
    logging.getLogger("asyncio").disabled = True  # it warns of the errors of tasks that were hit
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
    gc.collect()  # exceptions keep objects
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
    """Takes all parts of an answer, or stops after some."""
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

    joins = []
    try:  # a signal may come when the first thread runs already
        for first in (1, 2):
            joins.append(services.in_thread(many, first))
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


class Services(Storm):
    """Engines and clients of every kind under KILL, STOP, TERM and INT."""

    PATIENCE_S = 2.0 * PATIENCE_S

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--no-redeliver", dest="redeliver", action="store_false")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.there: list[tuple[str, Child]] = []
        self.held = contextlib.ExitStack()

    def begin(self) -> None:
        made = services.serve(self.name, engine=False, redeliver=self.args.redeliver)
        self.keeper = self.held.enter_context(made)
        for role in ["engine"] * ENGINES + ["client"] * CLIENTS:
            self.start(role)
        for _, child in self.there:
            services.up(child)

    def start(self, role: str) -> Child:
        how: tuple[Any, ...] = (self.name, os.getpid())
        if role == "engine":
            how = engine, (*how, self.args.redeliver, self.chance.random() < 0.5)
        else:
            how = client, (*how, self.chance.choice(KINDS))
        self.there.append((role, Child(*how, self.args.patience)))
        return self.there[-1][1]

    def torment(self) -> None:
        role, child = each = self.chance.choice(self.there)
        how = self.chance.choice([*SIGNALS])
        if child.pid in self.asleep:
            return
        if how == "stop":
            self.hit(how, child.pid, role, 0.2)
            return
        self.there.remove(each)
        self.strike(role, child, how)
        services.up(self.start(role))

    def strike(self, role: str, child: Child, how: str) -> None:
        """Ends a process.  If it can send how its calls ended, it has to do so within the
        deadline."""
        self.hit(how, child.pid, role)
        try:
            if how != "kill":
                with contextlib.suppress(Failed):
                    self.until(child.pipe.poll, "it says nothing", SWALLOWED_S)
                if not child.pipe.poll():
                    self.hit(how, child.pid, "once more")
                try:
                    self.until(child.pipe.poll, f"{how} has not ended the {role}")
                    ended = child.result()
                except AssertionError:
                    os.kill(child.pid, signal.SIGUSR1)  # faulthandler says where it is
                    child.process.join(1)
                    raise
                if role == "client":
                    self.counts.update(ended)
        finally:
            child.end()

    def finish(self) -> None:
        self.there.sort(key=lambda each: each[0], reverse=True)
        while self.there:  # clients first
            self.strike(*self.there.pop(), "term")
        ring = self.keeper.ring
        poll(lambda: ring._header.reap() or len(ring.stats().peers) == 2, PATIENCE_S)
        self.held.close()
        assert self.counts["answered"] + self.counts["streamed"] > 0

    def end(self) -> None:
        for _, child in self.there:
            child.end()
        self.held.close()
