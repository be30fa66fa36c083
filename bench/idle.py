"""What it costs to wait: CPU time of many processes, each waiting for a frame that does not come.

    python bench/idle.py [--processes 62] [--settle 5] [--seconds 10]

There is one ring in host memory.  Each process has one consumer, all of one subscription, and there
is no producer.  The figures are from /proc/PID/stat, which counts ticks of 10 ms.  They cover
`seconds` after `settle` seconds of waiting.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import time
from multiprocessing.synchronize import Semaphore
from pathlib import Path

import gpuring


def wait(name: str, joined: Semaphore) -> None:
    with gpuring.attach(name) as ring, ring.consumer("all") as frames:
        joined.release()
        with contextlib.suppress(gpuring.EndOfStream):
            frames.acquire()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=62)
    parser.add_argument("--settle", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    asked = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    joined = spawn.Semaphore(0)
    with gpuring.create(
        f"idle-{os.getpid()}", slots=8, shape=64, dtype="u1", device="host", max_peers=64
    ) as ring:
        waiting = [
            spawn.Process(target=wait, args=(ring.name, joined), daemon=True)
            for _ in range(asked.processes)
        ]
        for process in waiting:
            process.start()
        for _ in waiting:
            joined.acquire()
        time.sleep(asked.settle)
        pids = [process.pid for process in waiting if process.pid]
        before, began = sum(map(cpu_s, pids)), time.monotonic()
        time.sleep(asked.seconds)
        used, seconds = sum(map(cpu_s, pids)) - before, time.monotonic() - began
        ring.close()
        for process in waiting:
            process.join()
    print(f"{len(pids)} waiting processes: {100 * used / seconds:.1f} % of a core")


if __name__ == "__main__":
    main()
