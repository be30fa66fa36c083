"""What an event loop adds to a service call: CPU time in one thread, in host memory.

    python bench/service_tasks.py [--rounds 8]

32 calls are sent, answered in one batch, and taken: without a loop, and by 32 tasks.  The engine's
part is in the same thread, and its time is left out.  Beside them are 32 tasks that await one bare
future each, which a callback sets in a batch, and the same with one future in each turn of the
loop, whose descriptor is readable.  No program over asyncio takes less than these two.  Of all
rounds the quickest is told.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import gpuring  # noqa: E402
from bench import services  # noqa: E402
from gpuring.cli.measure import options  # noqa: E402

TASKS = 32
LAPS = 400


def _without_a_loop(client: Any, engine: Callable[[], int]) -> float:
    began, left_out = time.process_time_ns(), 0
    for _ in range(LAPS):
        calls = [client.send(word) for word in range(1, TASKS + 1)]
        left_out += engine()
        for word, call in enumerate(calls, 1):
            client.finish(call, word)
    return time.process_time_ns() - began - left_out


async def _in_tasks(client: Any, engine: Callable[[], int]) -> float:
    loop, sent, left_out = asyncio.get_running_loop(), 0, 0

    def answer() -> None:
        nonlocal left_out
        left_out += engine()

    def one_more() -> None:
        nonlocal sent
        sent += 1
        if sent % TASKS == 0:
            loop.call_soon(answer)

    words = iter(range(1, 1 << 62))
    began = time.process_time_ns()
    await asyncio.gather(*(_task(client, words, one_more) for _ in range(TASKS)))
    return time.process_time_ns() - began - left_out


async def _task(client: Any, words: Any, one_more: Callable[[], None]) -> None:
    for _ in range(LAPS):
        word = next(words)
        with await client.service.request_async() as slot:
            client.work.put(slot, word)
            call = slot.call
        one_more()
        with await call as answer:
            client.work.check(answer, word)


async def _bare_futures(at_once: int) -> float:
    """`at_once`: how many are set in one turn of the loop."""
    loop, asleep = asyncio.get_running_loop(), list[asyncio.Future[None]]()
    descriptor = os.eventfd(1)

    def wake() -> None:
        for future in asleep[:at_once]:
            future.set_result(None)
        del asleep[:at_once]

    async def task() -> None:
        for _ in range(LAPS):
            asleep.append(loop.create_future())
            await asleep[-1]

    loop.add_reader(descriptor, wake)
    try:
        began = time.process_time_ns()
        await asyncio.gather(*(task() for _ in range(TASKS)))
        return time.process_time_ns() - began
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def main() -> None:
    parser = options.parser("python bench/service_tasks.py", __doc__)
    options.add_rounds(parser, 8)
    asked = parser.parse_args()
    name, shape, work = f"bench-tasks-{os.getpid()}", ((services.WORDS,), "u8"), services.OnHost()
    with (
        gpuring.serve(name, request=shape, response=shape, device="host", slots=64) as server,
        gpuring.connect(name, calls=TASKS) as connected,
    ):
        client = services.Service(work, connected)

        def engine() -> int:
            began = time.process_time_ns()
            with server.take(TASKS, max_wait_s=0) as calls:
                for call in calls:
                    with call.answer() as slot:
                        work.answer(call, slot)
            return time.process_time_ns() - began

        rows: dict[str, Callable[[], float]] = {
            "calls without a loop": lambda: _without_a_loop(client, engine),
            "calls of 32 tasks": lambda: asyncio.run(_in_tasks(client, engine)),
            "bare futures of 32 tasks": lambda: asyncio.run(_bare_futures(TASKS)),
            "the same, one in each turn": lambda: asyncio.run(_bare_futures(1)),
        }
        for what, measure in rows.items():
            took = min(measure() for _ in range(asked.rounds))
            print(f"{what:30}{took / TASKS / LAPS / 1e3:7.2f} µs")


if __name__ == "__main__":
    main()
