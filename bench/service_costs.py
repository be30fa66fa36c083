"""Where the time of a service call goes on a machine with many cores, beside two rings by hand.

    python bench/service_costs.py [--against CHECKOUT] [--seconds 0.4] [--rounds 3] [--json FILE]

The programs are those of bench/services.py, in host memory.  It takes about a minute, and prints

* what a look at the clock costs, and how long a cache line takes from one processor to another;
* what a call costs in one thread that plays both parts, step by step: nobody waits there, and no
  cache line changes its processor.  `take` and `answer` are the engine's steps;
* the rates of two processes: wherever the scheduler puts them, on two neighbouring processors, on
  two that are far apart, and with a wait that never sleeps.  Beside them is how often each side
  slept, and how often a bell was rung, in 1,000 calls.

A rate far below that of one thread says that processors wait for each other's cache lines if nobody
sleeps, and that sleeping is what costs if somebody does.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import mmap
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import gpuring  # noqa: E402
from bench import services  # noqa: E402
from gpuring.cli.measure import options, stored  # noqa: E402
from gpuring.cli.measure.card import machine_card  # noqa: E402

FORMS = ("one", "eight", "batch")
BATCH = 8


def clock_ns(n: int = 1000) -> float:
    """What a look at the clock costs, with the call of a Python function around it."""
    now, best = time.monotonic_ns, float("inf")
    for _ in range(100):
        began = now()
        for _ in range(n):
            now()
        best = min(best, (now() - began) / n)
    return best


# ---- one thread ----


def one_thread(rounds: int = 2000) -> dict[str, float]:
    """ns for each call: the quickest round of each step."""
    name, shape = f"bench-costs-{os.getpid()}", ((services.WORDS,), "u8")
    options: Any = {"slots": 64, "shape": services.WORDS, "dtype": "u8", "device": "host"}
    work, best = services.OnHost(), dict.fromkeys(STEPS, float("inf"))

    def timed(step: str, function: Callable[..., Any], *args: Any) -> Any:
        began = time.perf_counter_ns()
        result = function(*args)
        best[step] = min(best[step], (time.perf_counter_ns() - began) / BATCH)
        return result

    with (
        gpuring.serve(name, request=shape, response=shape, device="host") as server,
        gpuring.connect(name, calls=32) as connected,
        gpuring.create(f"{name}.there", meta=services.META, **options) as there,
        gpuring.create(f"{name}.back", meta=services.META, **options) as back,
        there.producer() as requests,
        there.consumer() as taken,
        back.producer() as answers,
        back.consumer() as received,
    ):
        client, rings = (
            services.Service(work, connected),
            services.Rings(work, requests, received),
        )

        def serve(most: int) -> None:
            for _ in range(BATCH // most):
                with server.take(most) as calls:
                    for call in calls:
                        with call.answer() as slot:
                            work.answer(call, slot)

        def by_hand() -> None:
            for _ in range(BATCH):
                with taken.acquire() as request, answers.claim() as slot:
                    work.answer(request, slot)

        def finish(turn: Any, calls: list[Any]) -> None:
            for word, call in enumerate(calls, 1):
                turn.finish(call, word)

        def send(turn: Any) -> list[Any]:
            return [turn.send(word) for word in range(1, BATCH + 1)]

        for _ in range(rounds):
            calls = timed("rings: send", send, rings)
            timed("rings: acquire and answer", by_hand)
            timed("rings: finish", finish, rings, calls)
            calls = timed("service: send", send, client)
            timed("service: take(1) and answer", serve, 1)
            timed("service: finish", finish, client, calls)
            calls = send(client)
            timed("service: take(8) and answer", serve, BATCH)
            finish(client, calls)
    return best


STEPS = (
    "rings: send",
    "rings: acquire and answer",
    "rings: finish",
    "service: send",
    "service: take(1) and answer",
    "service: take(8) and answer",
    "service: finish",
)

# ---- a cache line between two processors ----


def _pong(memory: mmap.mmap, cpu: int, first: int, turns: int) -> None:
    """Writes its own numbers into a word when the other side has written the one before."""
    os.sched_setaffinity(0, {cpu})
    word = ctypes.c_uint64.from_buffer(memory)
    deadline = time.monotonic() + 10
    for turn in range(first, turns, 2):
        while word.value != turn:
            if turn % 1024 == first and time.monotonic() > deadline:
                return
        word.value = turn + 1


def line_ns(one: int, other: int, turns: int = 20_000) -> float:
    """How long a word takes from one processor to another, less what the same steps take on one
    processor alone."""
    memory = mmap.mmap(-1, 4096)
    spawn = multiprocessing.get_context("fork")
    process = spawn.Process(target=_pong, args=(memory, other, 1, turns), daemon=True)
    before = os.sched_getaffinity(0)
    process.start()
    try:
        began = time.perf_counter_ns()
        _pong(memory, one, 0, turns)
        took = (time.perf_counter_ns() - began) / turns
    finally:
        process.join(10)
        process.kill()
        os.sched_setaffinity(0, before)
    word = ctypes.c_uint64.from_buffer(mmap.mmap(-1, 4096))
    began = time.perf_counter_ns()
    for turn in range(turns):
        while word.value != turn:
            pass
        word.value = turn + 1
    return took - (time.perf_counter_ns() - began) / turns


# ---- two processes ----


def placements() -> dict[str, dict[str, Any]]:
    """What each variant gives to services.Pair."""
    cpus = sorted(os.sched_getaffinity(0))
    variants: dict[str, dict[str, Any]] = {"free": {}}
    if len(cpus) > 1:
        variants[f"on {cpus[0]} and {cpus[1]}"] = {"cpus": (cpus[0], cpus[1])}
    if len(cpus) > 3:
        far = cpus[len(cpus) // 2]
        variants[f"on {cpus[0]} and {far}"] = {"cpus": (cpus[0], far)}
        variants["free, never sleeping"] = {"spin": "inf"}
    return variants


def two_processes(asked: argparse.Namespace) -> list[dict[str, Any]]:
    checkouts = {"this": ROOT} | ({"other": asked.against.resolve()} if asked.against else {})
    seen: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for variant, how in placements().items():
        environment = dict(os.environ)
        if "spin" in how:
            environment["GPURING_SPIN"] = how["spin"]
        with contextlib.ExitStack() as stack:
            pairs = {
                which: services.Pair(
                    stack, path, f"bench-costs-{os.getpid()}-{which}", "host", environment
                )
                for which, path in checkouts.items()
            }
            for pair in pairs.values():
                if "cpus" in how:
                    pair.pin(*how["cpus"])
            for _ in range(asked.rounds):
                for form in FORMS:
                    for program in ("rings", "service"):
                        for which, pair in pairs.items():
                            figures = pair.measure(program, form, asked.seconds)
                            key = (variant, which, program, form)
                            seen.setdefault(key, []).append(figures)
    return [
        {"variant": key[0], "checkout": key[1], "program": key[2], "form": key[3], "rounds": rounds}
        for key, rounds in seen.items()
    ]


def _show(figures: list[dict[str, Any]]) -> None:
    columns = ("rate", "client_sleeps", "engine_sleeps", "there_bells", "back_bells")
    print(f"{'':46}{'calls/s':>10}{'sleeps of client, engine':>26}{'bells there, back':>20}")
    rings: dict[tuple[str, ...], float] = {}
    for row in figures:
        rate, mine, theirs, there, back = (
            statistics.median(each[column] for each in row["rounds"]) for column in columns
        )
        at = (row["variant"], row["checkout"], row["form"])
        if row["program"] == "rings":
            rings[at] = rate
        what = f"{row['program']}, {row['form']}, {row['variant']}, {row['checkout']}"
        beside = ""
        if row["program"] == "service":
            beside = f"  {rings[at] / rate:.2f} × rings"
        print(f"{what:46}{rate:10,.0f}{mine:18.1f}{theirs:8.1f}{there:12.1f}{back:8.1f}{beside}")


def main() -> None:
    parser = options.parser("python bench/service_costs.py", __doc__)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    options.add_rounds(parser, 3)
    options.add_seconds(parser, 0.4)
    options.add_json(parser, "where all rounds are stored")
    asked = parser.parse_args()
    card, cpus = machine_card(), sorted(os.sched_getaffinity(0))
    print(f"{len(cpus)} CPUs, load average {os.getloadavg()[0]:.1f}, {card['cpu']}")
    clock, steps = clock_ns(), one_thread()
    print(f"a look at the clock: {clock:.0f} ns")
    lines = {
        f"{cpus[0]}-{cpu}": min(line_ns(cpus[0], cpu) for _ in range(3))
        for cpu in {cpus[1], cpus[len(cpus) // 2]}
    }
    for which, took in lines.items():
        print(f"a cache line between processors {which}: {took:.0f} ns")
    for step, took in steps.items():
        print(f"one thread, {step + ':':32}{took:6.0f} ns")
    figures = two_processes(asked)
    _show(figures)
    if asked.json:
        told = {"clock_ns": clock, "line_ns": lines, "one_thread_ns": steps, "figures": figures}
        stored.write(asked.json, {"machine": card, **told})


if __name__ == "__main__":
    main()
