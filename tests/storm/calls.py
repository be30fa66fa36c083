"""Many calls of one service, plain and in parts; what its two processes use must not grow.

    python -m tests.storm calls --json bench/results/soak-services-host.json

One client with eight calls in flight, one engine that takes up to eight.  Every tenth call is
answered in three parts.  All answers are checked.  After each twentieth of the calls a row says
what both processes use.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections import deque
from pathlib import Path
from typing import Any

import gpuring
from tests.helpers.processes import PATIENCE_S, Child, Pipe
from tests.helpers.rings import segments_of
from tests.storm.harness import Storm

CALLS = 8
PARTS = 3
ROWS = 20
SETTLED = ROWS // 4  # rows after which nothing may grow any more
WORDS = 512
MOST = {"rss": 2 << 20, "fds": 0, "threads": 0, "objects": 200}
TERMS: dict[str, Any] = {
    "request": ((WORDS,), "u8"),
    "response": ((WORDS,), "u8"),
    "device": "host",
}


def use() -> dict[str, int]:
    """The resources that this process uses."""
    gc.collect()
    proc = Path("/proc/self")
    return {
        "rss": int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE"),
        "fds": len(list((proc / "fd").iterdir())),
        "threads": len(list((proc / "task").iterdir())),
        "objects": len(gc.get_objects()),
    }


def engine(pipe: Pipe, name: str) -> None:
    with gpuring.serve(name, **TERMS) as server:
        pipe.send("up")
        while True:
            if pipe.told():
                if pipe.receive() == "end":
                    return
                pipe.send(use())
            try:
                calls = server.take(CALLS, timeout=0.05)
            except gpuring.RingTimeout:
                continue
            for call in calls:
                first = int(call.array[0])
                for k in range(PARTS if first % 10 == 0 else 0):
                    with call.part(PATIENCE_S) as slot:
                        slot.array[0] = first + k
                if first % 10 == 0:
                    call.end()
                else:
                    with call.answer() as slot:
                        slot.array[0] = first


def check(k: int, call: gpuring.PendingCall) -> None:
    if k % 10:
        with call.result(PATIENCE_S) as slot:
            assert slot.array[0] == k
        return
    assert [int(part.array[0]) for part in call.parts(PATIENCE_S)] == [k + n for n in range(PARTS)]


class Calls(Storm):
    """Many calls of one service, plain and in parts; what its two processes use may not grow."""

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--calls", type=int, default=1_000_000)

    def run(self) -> None:
        """Waits for the end.  No process is hit."""
        calls, name = self.args.calls, self.name
        self.rows: list[dict[str, Any]] = []
        self.child = child = Child(engine, (name,), PATIENCE_S)
        assert child.receive() == "up"
        with gpuring.connect(name, calls=CALLS, parts=PARTS, timeout=PATIENCE_S) as client:
            flying: deque[tuple[int, gpuring.PendingCall]] = deque()
            for k in range(1, calls + 1):
                with client.request(PATIENCE_S) as slot:
                    slot.array[0] = k
                    flying.append((k, slot.call))
                while len(flying) == CALLS or (flying and k % (calls // ROWS) == 0):
                    check(*flying.popleft())
                if k % (calls // ROWS) == 0:
                    child.send("use")
                    self.rows.append({"calls": k, "client": use(), "engine": child.receive()})
        child.send("end")
        child.result()
        for who in ("client", "engine"):
            for what, most in MOST.items():
                grown = self.rows[-1][who][what] - self.rows[SETTLED][who][what]
                self.counts[f"{who} {what} more"] = grown
                assert grown <= most, f"{who} {what} grew by {grown}"
        assert not segments_of(name)

    def end(self) -> None:
        self.child.end()

    def result(self) -> dict[str, Any]:
        return super().result() | {"rows": self.rows}
