"""A service with hundreds of client processes and several engines, some of which are killed.

`python -m tests.service.many_clients --clients 200 --engines 8` runs it and prints its books;
test_service_many.py runs a smaller one.  All processes are forked, and the parent has no handle of
its own: it counts, kills and waits.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import random
import resource
import secrets
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gpuring
from tests.helpers.support import segments_of
from tests.service.services import answer, check, send, serve

BATCH = 8  # calls that an engine takes at once
DEPTH = 4  # calls of a client that are in flight
USUAL_FILES = 1024  # how many a process may have open, unless somebody has raised the limit
UP, SENT, ANSWERED, LATE, DONE, FILES, COLUMNS = range(7)
GO, KILLED, ENGINES_STOP, KEEPER_STOPS = range(4)


class Run:
    """One run: its processes, and a row of books for each, in memory that outlives them."""

    def __init__(self, name: str, deadline_s: float) -> None:
        self.name = name
        self.deadline = time.monotonic() + deadline_s
        self.rows: list[int] = []  # pid of each row's process; 0 once it has ended
        self._memory = mmap.mmap(-1, 8 * 1024 * COLUMNS)
        self.books = np.frombuffer(self._memory, "i8").reshape(-1, COLUMNS)
        self.flags = self.books[-1]  # what the parent says to all

    def fork(self, target: Callable[..., None], *args: Any) -> int:
        """Starts a process; the number of its row."""
        row, parent = len(self.rows), os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
                assert os.getppid() == parent
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

    def kill(self, row: int) -> None:
        os.kill(self.rows[row], signal.SIGKILL)
        _, status = os.waitpid(self.rows[row], 0)
        self.rows[row] = 0
        assert os.WTERMSIG(status) == signal.SIGKILL, f"it had ended: {status:#x}"

    def until(self, condition: Callable[[], Any], what: str) -> None:
        while not condition():
            assert time.monotonic() < self.deadline, f"not in time: {what}"
            time.sleep(0.01)
            for row, pid in enumerate(self.rows):
                if pid and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    assert self.books[row, DONE], f"process {row} has failed"

    def end(self, rows: list[int]) -> None:
        """Waits until they have ended in good order."""
        for row in rows:
            self.until(lambda row=row: self.books[row, DONE], f"the end of process {row}")
            _, status = os.waitpid(self.rows[row], 0)
            self.rows[row] = 0
            assert status == 0, f"process {row} has failed: {status:#x}"

    def close(self) -> None:
        for pid in filter(None, self.rows):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def keeper(run: Run, mine: Any, slots: int) -> None:
    with serve(run.name, slots=slots, engine=False):
        mine[UP] = 1
        while not run.flags[KEEPER_STOPS]:
            time.sleep(0.01)
    mine[DONE] = 1


def engine(run: Run, mine: Any) -> None:
    with serve(run.name, timeout=60) as server:
        mine[UP] = 1
        while not run.flags[ENGINES_STOP]:
            with contextlib.suppress(gpuring.RingTimeout), server.take(BATCH, timeout=0.1) as calls:
                for call in calls:
                    answer(call)
                    mine[ANSWERED] += 1
        mine[FILES] = len(list(Path("/proc/self/fd").iterdir()))
    mine[DONE] = 1


def client(run: Run, mine: Any, calls: int) -> None:
    """Its last call waits for all kills, so there is somebody to kill."""
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


def play(
    name: str, clients: int, engines: int, calls: int, kills: int, *, seed: int = 1,
    deadline_s: float = 100,
) -> dict[str, Any]:  # fmt: skip
    """Every second kill is an engine's.  The dead are replaced."""
    dice, run, began = random.Random(seed), Run(name, deadline_s), time.monotonic()
    try:
        first = run.fork(keeper, 64)
        run.until(lambda: run.books[first, UP], "the keeper")
        of = {
            engine: [run.fork(engine) for _ in range(engines)],
            client: [run.fork(client, calls) for _ in range(clients)],
        }
        run.until(run.books[: len(run.rows), UP].all, "all processes")
        up_s = time.monotonic() - began
        run.flags[GO] = 1
        dead: dict[Any, list[int]] = {engine: [], client: []}

        def ended() -> int:
            return int(run.books[of[client], ANSWERED].sum())

        for n in range(kills):
            run.until(lambda n=n: ended() >= (n + 1) * clients * calls // (kills + 2), "answers")
            role = (engine, client)[n % 2]
            row = dice.choice([row for row in of[role] if not run.books[row, DONE]])
            run.kill(row)
            dead[role].append(row)
            of[role].remove(row)
            of[role].append(run.fork(role, *([calls] if role is client else [])))
        run.flags[KILLED] = 1
        run.end(of[client])
        seconds = time.monotonic() - began - up_s
        run.flags[ENGINES_STOP] = 1
        run.end(of[engine])
        run.flags[KEEPER_STOPS] = 1
        run.end([first])
        books = run.books
        for row in of[client]:
            assert books[row, SENT] == books[row, ANSWERED] == calls, (row, books[row])
        for row in dead[client]:
            assert books[row, ANSWERED] <= books[row, SENT] <= calls
        got, sent = (int(books[of[client] + dead[client], k].sum()) for k in (ANSWERED, SENT))
        given = int(books[of[engine] + dead[engine], ANSWERED].sum())
        # A dead engine may have answered one call that it did not write down, and may have answered
        # what another engine answered again. A dead client may have sent one that it did not.
        least, most = got - len(dead[engine]), sent + BATCH * len(dead[engine]) + len(dead[client])
        assert least <= given <= most, (got, given, sent)
        late = int(books[of[client], LATE].sum())  # second answers
        assert late <= BATCH * len(dead[engine]), late
        assert segments_of(name) == [], segments_of(name)
    finally:
        run.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "clients": clients, "engines": engines, "killed clients": len(dead[client]),
        "killed engines": len(dead[engine]), "sent": sent, "answered": given, "got": got,
        "all up after s": round(up_s, 1), "seconds": round(seconds, 1),
        "calls/s": round(got / seconds), "processor s": round(used.ru_utime + used.ru_stime, 1),
        "open files of an engine": int(run.books[of[engine], FILES].max()),
        "open files of a client": int(run.books[of[client], FILES].max()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for option, default in {
        "clients": 200, "engines": 8, "calls": 50, "kills": 20, "seed": 1, "deadline-s": 600,
    }.items():  # fmt: skip
        parser.add_argument(f"--{option}", type=int, default=default)
    asked = vars(parser.parse_args())
    print(json.dumps(play(f"many-{os.getpid()}-{secrets.token_hex(4)}", **asked)))


if __name__ == "__main__":
    main()
