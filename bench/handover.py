"""What a hand-over costs: frames/s, host time of each verb, round trips.  Verified first.

    python -m bench.handover [--json FILE] [--frames N] [--where host cuda-timeline …]

Two processes, one ring of 8 slots (and a second one back for round trips).  On a GPU each side
launches one small kernel per frame: the producer stamps the slot with a pattern of its sequence,
the consumer counts words that differ; the count must be zero or the figure is not reported.  On the
host NumPy does the same.  What it does not show: other frame sizes and slot counts, several
consumers, a busy GPU. Figures of different runs or machines are not comparable; ratios within one
run are.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import gpuring
from bench.card import machine_card
from bench.patterns import pattern_for

SLOTS = 8
WORDS = 512  # 4 KiB a frame
WARM_UP = 500
DEADLINE_S = 240
PLACES: dict[str, dict[str, Any]] = {
    "host": {"device": "host"},
    "cuda-timeline": {"sync": "timeline"},
    "cuda-timeline-hostgate": {"sync": "timeline", "gate": "host"},
    "cuda-event": {"sync": "event"},
    "cuda-event-hostgate": {"sync": "event", "gate": "host"},
}


class Clock:
    """Durations of one verb."""

    def __init__(self, n: int) -> None:
        self.ns = np.zeros(n, np.int64)
        self.at = 0

    def time(self, verb: Callable[[], Any]) -> Any:
        start = time.perf_counter_ns()
        result = verb()
        self.ns[self.at % len(self.ns)] = time.perf_counter_ns() - start
        self.at += 1
        return result

    def summary(self) -> dict[str, float]:
        us = self.ns[: self.at] / 1e3
        return {f"p{p:g}_us": round(float(np.percentile(us, p)), 2) for p in (10, 50, 90, 99, 99.9)}


def consume(name: str, frames: int, pipe: Connection) -> None:
    """Reads `frames` frames, then answers with what it measured and how many words differ."""
    with gpuring.attach(name, timeout=30) as ring, ring.consumer() as consumer:
        pattern = pattern_for(ring)
        acquire, release = Clock(frames), Clock(frames)
        pipe.send("ready")
        for n in range(WARM_UP + frames):
            if n == WARM_UP:
                acquire.at = release.at = 0
            slot = acquire.time(consumer.acquire)
            pattern.check(slot.array, slot.seq)
            release.time(slot.release)
        pipe.send(
            {"acquire": acquire.summary(), "release": release.summary(), "wrong": pattern.wrong()}
        )


def produce(name: str, place: dict[str, Any], frames: int) -> dict[str, Any]:
    with _ring(name, place) as ring, ring.producer() as producer:
        pattern = pattern_for(ring)
        with _child(consume, name, frames) as pipe:
            _receive(pipe)
            claim, publish = Clock(frames), Clock(frames)
            for n in range(WARM_UP + frames):
                if n == WARM_UP:
                    pattern.finish()
                    claim.at = publish.at = 0
                    start = time.perf_counter()
                slot = claim.time(producer.claim)
                pattern.stamp(slot.array, slot.seq)
                publish.time(slot.publish)
            pattern.finish()
            other = _receive(pipe)
            elapsed = time.perf_counter() - start
        _verify(other["wrong"])
        return {
            "frames": frames,
            "frames_per_s": round(frames / elapsed),
            "producer": {"claim": claim.summary(), "publish": publish.summary()},
            "consumer": {"acquire": other["acquire"], "release": other["release"]},
        }


def echo(there: str, back: str, rounds: int, pipe: Connection) -> None:
    """Answers every frame of one ring with a frame of another."""
    with (
        gpuring.attach(there, timeout=30) as inward,
        gpuring.attach(back, timeout=30) as outward,
        inward.consumer() as consumer,
        outward.producer() as producer,
    ):
        pattern = pattern_for(inward)
        pipe.send("ready")
        for _ in range(WARM_UP + rounds):
            with consumer.acquire() as question, producer.claim() as answer:
                pattern.check(question.array, question.seq)
                pattern.stamp(answer.array, answer.seq)
        pipe.send(pattern.wrong())


def round_trip(name: str, place: dict[str, Any], rounds: int) -> dict[str, Any]:
    """A kernel on each side; the clock stops when the answer's check has run."""
    back = f"{name}-back"
    with _ring(name, place) as outward, _ring(back, place) as inward:
        with outward.producer() as producer, inward.consumer() as consumer:
            pattern, clock = pattern_for(outward), Clock(rounds)
            with _child(echo, name, back, rounds) as pipe:
                _receive(pipe)

                def ask() -> None:
                    with producer.claim() as slot:
                        pattern.stamp(slot.array, slot.seq)
                    with consumer.acquire() as slot:
                        pattern.check(slot.array, slot.seq)
                    pattern.finish()

                for n in range(WARM_UP + rounds):
                    if n == WARM_UP:
                        clock.at = 0
                    clock.time(ask)
                _verify(_receive(pipe) + pattern.wrong())
        return {"rounds": rounds, "round_trip": clock.summary()}


def _ring(name: str, place: dict[str, Any]) -> gpuring.Ring:
    return gpuring.create(name, slots=SLOTS, shape=(WORDS,), dtype="u8", replace=True, **place)


class _child:
    """A spawned process with a pipe; killed if it is still there at the end."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(*args, theirs), daemon=True)
        self.process.start()

    def __enter__(self) -> Connection:
        return self.pipe

    def __exit__(self, *error: object) -> None:
        self.process.join(10 if error[0] is None else 0)
        self.process.kill()
        self.process.join()


def _receive(pipe: Connection) -> Any:
    if not pipe.poll(DEADLINE_S):
        raise TimeoutError(f"no answer from the other process within {DEADLINE_S} s")
    return pipe.recv()


def _verify(wrong: int) -> None:
    if wrong:
        raise AssertionError(f"{wrong} words differ from what was written: no figures are reported")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--where", nargs="+", choices=PLACES, default=list(PLACES))
    args = parser.parse_args()
    results: dict[str, Any] = {
        "machine": machine_card(),
        "words": WORDS,
        "slots": SLOTS,
        "places": {},
    }
    for where in args.where:
        try:
            found = produce(f"bench-{where}", PLACES[where], args.frames)
            found |= round_trip(f"bench-{where}-rt", PLACES[where], args.rounds)
        except gpuring.DeviceError as error:
            found = {"skipped": str(error)}
        results["places"][where] = found
        print(where, json.dumps(found), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
