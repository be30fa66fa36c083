"""A service with hundreds of client processes and several engines, some of which are killed.

All processes are forked, and this one has no handle of its own: it counts, kills and waits.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gpuring
from tests.helpers.processes import die_with
from tests.service.services import answer, check, send, serve
from tests.storm.harness import Storm

BATCH = 8  # calls that an engine takes at once
DEPTH = 4  # calls of a client that are in flight
USUAL_FILES = 1024  # the usual limit of open files of a process
UP, SENT, ANSWERED, LATE, DONE, FILES, COLUMNS = range(7)
GO, KILLED, ENGINES_STOP, KEEPER_STOPS = range(4)


class Clients(Storm):
    """Hundreds of clients of one service.  Every second kill is an engine's."""

    PATIENCE_S = 600.0

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        for option, default in {"clients": 200, "engines": 8, "calls": 50, "kills": 20}.items():
            parser.add_argument(f"--{option}", type=int, default=default)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rows: list[int] = []  # pid of each row's process; 0 once it has ended
        self._memory = mmap.mmap(-1, 8 * 1024 * COLUMNS)
        self.books = np.frombuffer(self._memory, "i8").reshape(-1, COLUMNS)
        self.flags = self.books[-1]  # the row in which this process writes for all
        self.dead: dict[Any, list[int]] = {engine: [], client: []}

    def fork(self, target: Callable[..., None], *args: Any) -> int:
        """Starts a process.  Returns the number of its row."""
        row, parent = len(self.rows), os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                die_with(parent)
                _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(USUAL_FILES, most), most))
                target(self, self.books[row], *args)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        self.rows.append(pid)
        return row

    def kill(self, role: Any) -> None:
        row = self.chance.choice([row for row in self.of[role] if not self.books[row, DONE]])
        self.hit("kill", self.rows[row], role.__name__)
        _, status = os.waitpid(self.rows[row], 0)
        self.rows[row] = 0
        assert os.WTERMSIG(status) == signal.SIGKILL, f"it had ended: {status:#x}"
        self.dead[role].append(row)
        self.of[role].remove(row)
        self.of[role].append(self.fork(role, *([self.args.calls] if role is client else [])))

    def look(self) -> None:
        for row, pid in enumerate(self.rows):
            if pid and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                assert self.books[row, DONE], f"process {row} has failed"

    def ended(self, rows: list[int]) -> None:
        """Waits until these processes have ended cleanly."""
        for row in rows:
            self.until(lambda row=row: self.books[row, DONE], f"process {row} does not end")
            _, status = os.waitpid(self.rows[row], 0)
            self.rows[row] = 0
            assert status == 0, f"process {row} has failed: {status:#x}"

    def begin(self) -> None:
        self.began = time.monotonic()
        self.first = self.fork(keeper, 64)
        self.until(lambda: self.books[self.first, UP], "no keeper")
        self.of = {
            engine: [self.fork(engine) for _ in range(self.args.engines)],
            client: [self.fork(client, self.args.calls) for _ in range(self.args.clients)],
        }
        self.until(self.books[: len(self.rows), UP].all, "not all processes are up")
        self.up_s = time.monotonic() - self.began
        self.flags[GO] = 1

    def kills(self) -> int:
        return sum(map(len, self.dead.values()))

    def over(self, _: float) -> bool:
        return self.kills() == self.args.kills

    def torment(self) -> None:
        """Kills a process each time that the clients have got so many answers."""
        n, calls = self.kills(), self.args.clients * self.args.calls
        if self.books[self.of[client], ANSWERED].sum() >= (n + 1) * calls // (self.args.kills + 2):
            self.kill((engine, client)[n % 2])

    def finish(self) -> None:
        of, dead, books = self.of, self.dead, self.books
        self.flags[KILLED] = 1
        self.ended(of[client])
        seconds = time.monotonic() - self.began - self.up_s
        self.flags[ENGINES_STOP] = 1
        self.ended(of[engine])
        self.flags[KEEPER_STOPS] = 1
        self.ended([self.first])
        for row in of[client]:
            assert books[row, SENT] == books[row, ANSWERED] == self.args.calls, (row, books[row])
        for row in dead[client]:
            assert books[row, ANSWERED] <= books[row, SENT] <= self.args.calls
        got, sent = (int(books[of[client] + dead[client], k].sum()) for k in (ANSWERED, SENT))
        given = int(books[of[engine] + dead[engine], ANSWERED].sum())
        # A dead engine may have answered one call that it did not write down, and may have answered
        # what another engine answered again. A dead client may have sent one that it did not.
        least, most = got - len(dead[engine]), sent + BATCH * len(dead[engine]) + len(dead[client])
        assert least <= given <= most, (got, given, sent)
        late = int(books[of[client], LATE].sum())  # second answers
        assert late <= BATCH * len(dead[engine]), late
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.counts.update({
            "sent": sent, "answered": given, "got": got, "calls/s": round(got / seconds),
            "s until all were up": round(self.up_s, 1), "seconds": round(seconds, 1),
            "processor s": round(used.ru_utime + used.ru_stime, 1),
            "open files of an engine": int(books[of[engine], FILES].max()),
            "open files of a client": int(books[of[client], FILES].max()),
        })  # fmt: skip

    def end(self) -> None:
        for pid in filter(None, self.rows):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def keeper(run: Clients, mine: Any, slots: int) -> None:
    with serve(run.name, slots=slots, engine=False):
        mine[UP] = 1
        while not run.flags[KEEPER_STOPS]:
            time.sleep(0.01)
    mine[DONE] = 1


def engine(run: Clients, mine: Any) -> None:
    with serve(run.name, timeout=60) as server:
        mine[UP] = 1
        while not run.flags[ENGINES_STOP]:
            with contextlib.suppress(gpuring.RingTimeout), server.take(BATCH, timeout=0.1) as calls:
                for call in calls:
                    answer(call)
                    mine[ANSWERED] += 1
        mine[FILES] = len(list(Path("/proc/self/fd").iterdir()))
    mine[DONE] = 1


def client(run: Clients, mine: Any, calls: int) -> None:
    """Makes calls.  The last one waits for all kills, so that there is always somebody to kill."""
    with gpuring.connect(run.name, calls=DEPTH, timeout=60, engine_s=60) as client:
        mine[UP] = 1
        while not run.flags[GO]:
            time.sleep(0.01)
        flying = []
        for k in range(calls):
            if k == calls - 1:
                while flying:
                    finish(client, mine, *flying.pop())
                while not run.flags[KILLED]:
                    time.sleep(0.01)
            flying.append((k, send(client, k, timeout=60)))
            mine[SENT] += 1
            if len(flying) == DEPTH:
                finish(client, mine, *flying.pop(0 if k % 3 else -1))
        for each in flying:
            finish(client, mine, *each)
        mine[FILES] = len(list(Path("/proc/self/fd").iterdir()))
        assert client.in_flight == 0
        mine[LATE] = client.late
    mine[DONE] = 1


def finish(client: gpuring.Client, mine: Any, k: int, call: Any) -> None:
    with call.result(60) as slot:
        check(client, k, slot)
    mine[ANSWERED] += 1
