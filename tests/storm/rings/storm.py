"""Who starts, torments and judges the processes of a storm.

It has no ring itself and no thread, so it may fork: a new process costs a few milliseconds and is a
program of its own, which ends as programs do.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .books import Books
from .cast import ROLES, play
from .paper import ROW, Findings, Progress, load, read
from .program import TOLD, Program

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM,
           "int": signal.SIGINT}  # fmt: skip
MOST_SIGNALS_PER_S = 25
STOPPED_S = 0.1


class Become(BaseException):
    """In a new process, to leave the tormentor's frames."""


class Failed(Exception):
    pass


@dataclass
class Child:
    pid: int
    number: int
    role: str
    stopped_until: float = 0.0
    told: bool = False
    """To end."""
    counted: int = 0
    """Its progress when that last rose ..."""
    rose: float = field(default_factory=time.monotonic)
    """... and when that was."""


@dataclass
class Storm:
    seconds: float
    seed: int
    roles: list[str]
    signals: list[str]
    patience_s: float
    folder: Path
    names: list[str] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    judged: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.names = [f"storm-{os.getpid()}-{secrets.token_hex(2)}-{k}" for k in range(2)]
        self.progress = Progress(self.folder / "progress", create=True)
        self.findings = Findings(self.folder / "findings")
        self.rings = self.folder / "rings"
        self.rings.mkdir()
        self._started = 0

    # ---- processes -----------------------------------------------------------------------------

    def start(self, role: str) -> None:
        number, parent = self._started, os.getpid()
        self._started += 1
        signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)  # until it has its handlers
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD)
        else:
            raise Become(Program(self.rings.parent, number, role, self.names, self.seed), parent)
        self.children.append(Child(pid, number, role))
        self.counts["processes"] += 1

    def reap(self, *, again: bool = True) -> None:
        """Notes who has ended; starts its role again."""
        for child in list(self.children):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if not pid:
                continue
            self.children.remove(child)
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGKILL:
                self.killed.add(child.number)
            elif code == -signal.SIGTERM and child.told:
                pass  # once more, when its interpreter had taken its handlers down
            elif code != 0:
                self.findings.add(f"{child.role}.{child.number}", f"ended with {code}")
            if again or (child.role.startswith("keeper") and code == -signal.SIGKILL):
                self.start(child.role)  # who else would close the ring that it leaves?

    def torment(self) -> None:
        """Sends one signal to somebody; and wakes those who have slept."""
        now = time.monotonic()
        for child in self.children:
            if child.stopped_until and now >= child.stopped_until:
                os.kill(child.pid, signal.SIGCONT)
                child.stopped_until = 0.0
                child.rose = now
        what = self.chance.choice(self.signals)
        there = [child for child in self.children if not child.stopped_until]
        if what in ("kill", "term"):
            there = [child for child in there if not ROLES[child.role].steady]
        if what in ("term", "int"):  # a second one would find an interpreter that ends
            there = [child for child in there if not child.told]
        if not there:
            return
        child = self.chance.choice(there)
        os.kill(child.pid, SIGNALS[what])
        child.told |= what == "term"
        self.counts[f"SIG{what.upper()}"] += 1
        if what == "stop":
            child.stopped_until = now + self.chance.random() * STOPPED_S

    def look(self) -> None:
        """Whether something is wrong that is known already, or somebody is stuck."""
        for finding in self.findings:
            raise Failed(finding)
        now = time.monotonic()
        for child in self.children:
            counted = self.progress[child.number]
            if counted != child.counted or child.stopped_until:
                child.counted, child.rose = counted, now
            elif now - child.rose > self.patience_s:
                raise Failed(self._stuck(child))

    def _stuck(self, child: Child) -> str:
        text = f"{child.role}.{child.number} has done nothing for {self.patience_s} s"
        for each in self.children:
            os.kill(each.pid, signal.SIGUSR1)  # faulthandler
        time.sleep(0.5)
        trace = (self.folder / f"trace.{child.number}").read_text()
        shown = [
            subprocess.run([sys.executable, "-m", "gpuring", "inspect", name], check=False,
                           capture_output=True, text=True, timeout=20).stdout
            for name in self.names
        ]  # fmt: skip
        return "\n".join([text, trace, *shown])

    # ---- the course of it ----------------------------------------------------------------------

    def run(self) -> None:
        for role in self.roles:
            self.start(role)
        begun = time.monotonic()
        while (now := time.monotonic()) < begun + self.seconds:
            self.reap()
            self.look()
            if now > begun + 0.5 and self.signals:
                self.torment()
            if self.counts["turns"] % 25 == 0:
                self.judge()
            self.counts["turns"] += 1
            time.sleep(self.chance.random() * 2 / MOST_SIGNALS_PER_S)
        self.finish()

    def finish(self) -> None:
        """Producers end and rings are closed; others end when they have read everything.  Followers
        wait for the next ring until they are told; creators keep the memory for them."""
        for child in self.children:
            os.kill(child.pid, signal.SIGCONT)
            child.stopped_until, child.rose = 0.0, time.monotonic()
        (self.folder / "finish").touch()
        self._wait_for(lambda child: not child.role.startswith(("follower", "keeper")))
        while any(child.role.startswith("follower") for child in self.children):
            for child in self.children:  # again: a `__del__` may swallow what the handler raises
                if child.role.startswith("follower"):
                    child.told = True
                    os.kill(child.pid, signal.SIGTERM)
            self._wait_for(lambda child: child.role.startswith("follower"), most_s=1)
        self._wait_for(lambda child: True)
        self.judge(all_=True)
        self.look()
        left = [path.name for name in self.names for path in Path("/dev/shm").glob(f"*{name}*")]
        if left:
            raise Failed(f"left in /dev/shm: {left}")

    def _wait_for(self, whom: Callable[[Child], bool], most_s: float = math.inf) -> None:
        until = time.monotonic() + most_s
        while any(whom(child) for child in self.children) and time.monotonic() < until:
            self.reap(again=False)
            self.look()
            time.sleep(0.01)

    def end(self) -> None:
        """Nobody is left, whatever happened."""
        for child in self.children:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
        for name in self.names:
            for path in Path("/dev/shm").glob(f"gpuring.{name}*"):
                path.unlink()

    # ---- the books -----------------------------------------------------------------------------

    def judge(self, *, all_: bool = False) -> None:
        """Judges the rings that are over, the oldest of each name first, and forgets them."""
        living = {child.number for child in self.children}
        by_name: dict[int, list[tuple[int, Path]]] = {}
        for folder in self.rings.iterdir():
            for path in folder.iterdir():
                if len(joins := read(path, ROW.itemsize)):
                    index, created_ns = int(joins["producer"][0]), int(joins["seq"][0])
                    by_name.setdefault(index, []).append((created_ns, folder))
                    break
        for rings in by_name.values():
            rings.sort()
            for _, folder in rings if all_ else rings[:-1]:
                sheets = load(folder)
                if not all_ and any(
                    int(who.split(".")[1]) in living and not (sheet["mark"] == b"Z").any()
                    for who, sheet in sheets.items()
                ):
                    break
                self._judge_one(folder, sheets)

    def _judge_one(self, folder: Path, sheets: dict[str, np.ndarray]) -> None:
        books = Books(sheets, self.killed.__contains__)
        wrong = books.judge()
        if folder.name in self.judged and books.counts["published"]:
            wrong.append("somebody came back to a ring that was over")
        for text in wrong:
            kept = shutil.copytree(folder, self.folder / f"wrong-{folder.name}", dirs_exist_ok=True)
            self.findings.add(f"the books of {folder.name} (kept in {kept})", text)
        self.counts += books.counts
        self.counts["rings"] += folder.name not in self.judged
        self.judged.add(folder.name)
        for who in sheets:
            (folder / who).unlink()


def storm(
    seconds: float, seed: int, roles: list[str], signals: list[str], patience_s: float
) -> int:
    """Runs one, and says how it was.  0: all is well."""
    folder = Path(tempfile.mkdtemp(prefix="gpuring-storm-"))
    this = Storm(seconds, seed, roles, signals, patience_s, folder)
    print(
        f"storm of seed {seed}, {seconds:g} s, {' '.join(signals)}: {' '.join(roles)}", flush=True
    )
    failure = ""
    try:
        this.run()
    except Failed as failed:
        failure = str(failed)
    except Become as become:  # another process now
        program, parent = become.args
        program.begin(parent)
        play(program)
        return 0
    except KeyboardInterrupt:
        failure = "given up"
    this.end()
    for what, n in sorted(this.counts.items()):
        print(f"  {n:>9} {what}")
    if failure:
        print(f"FAILED (seed {seed}, papers in {folder}):\n{failure}", flush=True)
        return 1
    shutil.rmtree(folder)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--signals", nargs="*", choices=SIGNALS, default=list(SIGNALS))
    parser.add_argument("--roles", nargs="*", choices=ROLES, default=list(ROLES))
    parser.add_argument("--patience", type=float, default=20, help="until somebody counts as stuck")
    args = parser.parse_args()
    seed = secrets.randbelow(1 << 30) if args.seed is None else args.seed
    return storm(args.seconds, seed, args.roles, args.signals, args.patience)
