"""What all storms have in common: a seed, signals to processes, a command line, and a verdict."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuring.cli.measure.card import machine_card
from tests.helpers.rings import segments_of

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM,
           "int": signal.SIGINT}  # fmt: skip


class Failed(AssertionError):
    """The storm has found a fault."""


class Unavailable(Exception):
    """There can be no such storm here."""


class Become(BaseException):
    """Raised in a forked process, to leave the frames of the storm.  Its argument is called
    then."""


class Storm:
    """A kind of storm says who takes part, what happens to them, and what must be so at the end.

    `counts` has the figures for its report.  What `chance` decides in `torment` follows from the
    seed.
    """

    SECONDS = 3600.0
    PATIENCE_S = 60.0
    PAUSE_S = 0.2
    """The longest between two troubles."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.chance = random.Random(args.seed)
        self.counts: Counter[str] = Counter()
        self.name = f"storm-{os.getpid()}-{secrets.token_hex(2)}"
        self.asleep: dict[int, float] = {}
        """Who is stopped, by pid, and until when."""

    # ---- what a kind of storm says -------------------------------------------------------------

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        """Adds the options of this kind of storm."""

    def begin(self) -> None:
        """Starts all who take part."""

    def torment(self) -> None:
        """Does something to one of the processes."""

    def look(self) -> None:
        """Raises Failed if something is wrong already, or nothing moves."""

    def over(self, seconds: float) -> bool:
        return seconds >= self.args.seconds

    def finish(self) -> None:
        """Ends all processes cleanly, and judges what they have written down."""

    def why(self) -> str:
        """More text that may explain a failure."""
        return ""

    def end(self) -> None:
        """Leaves no process behind, whatever has happened."""

    def result(self) -> dict[str, Any]:
        return dict(sorted(self.counts.items()))

    # ---- the course of it ----------------------------------------------------------------------

    def run(self) -> None:
        self.begin()
        begun = next_at = time.monotonic()
        while not self.over((now := time.monotonic()) - begun):
            self.calm()
            self.look()
            if now >= next_at:
                self.torment()
                next_at = time.monotonic() + self.chance.random() * self.PAUSE_S
            time.sleep(0.005)
        self.calm(all_=True)
        self.finish()
        if left := segments_of(self.name):
            raise Failed(f"left in /dev/shm: {left}")

    def hit(self, what: str, pid: int, whom: str = "", most_s: float = 0.1) -> None:
        """Sends a signal.  A process that is stopped goes on after a while."""
        os.kill(pid, SIGNALS[what])
        self.counts[f"{what} {whom}".strip()] += 1
        if what == "stop":
            self.asleep[pid] = time.monotonic() + self.chance.random() * most_s

    def calm(self, *, all_: bool = False) -> None:
        """Continues the processes that were stopped for long enough."""
        for pid, until in list(self.asleep.items()):
            if all_ or time.monotonic() >= until:
                del self.asleep[pid]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def until(
        self, condition: Callable[[], Any], otherwise: str, most_s: float | None = None
    ) -> None:
        """Looks until the condition is true.  Raises Failed(otherwise) if it stays false."""
        end = time.monotonic() + (self.args.patience if most_s is None else most_s)
        while not condition():
            self.calm()
            self.look()
            if time.monotonic() > end:
                raise Failed(otherwise)
            time.sleep(0.01)


# ---- one storm ---------------------------------------------------------------------------------


def parser_of(kind: type[Storm], **more: Any) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=kind.__doc__, **more)
    parser.add_argument("--seconds", type=float, default=kind.SECONDS)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30))
    parser.add_argument(
        "--patience", type=float, default=kind.PATIENCE_S, help="when a process counts as stuck"
    )
    parser.add_argument("--json", type=Path, help="write what was counted to this file")
    kind.options(parser)
    return parser


def storm(kind: type[Storm], args: argparse.Namespace | None = None, **asked: Any) -> Storm:
    """Runs a storm and judges it.  Raises Failed, with the seed, or Unavailable."""
    args = args or parser_of(kind).parse_args([])
    vars(args).update(asked)
    folder = Path(tempfile.mkdtemp(prefix="gpuring-storm-"))
    this = kind(args, folder)
    why: BaseException | None = None
    said = ""
    try:
        this.run()
    except (Become, Unavailable) as other:  # a forked process leaves everything as it is
        if isinstance(other, Unavailable):
            this.end()
            shutil.rmtree(folder)
        raise
    except BaseException as error:
        why, said = error, f"{str(error) or repr(error)}\n{this.why()}".strip()
    with contextlib.suppress(AssertionError) if why else contextlib.nullcontext():
        this.end()
    if why:
        raise Failed(f"{said}\n(seed {args.seed}, papers in {folder})\n{told(this)}") from why
    shutil.rmtree(folder)
    return this


def told(this: Storm) -> str:
    return "\n".join(f"  {n:>9} {what}" for what, n in this.counts.items())


def main(kind: type[Storm], prog: str, options: list[str]) -> int:
    args = parser_of(kind, prog=prog).parse_args(options)
    asked = {key: value for key, value in vars(args).items() if key != "json"}
    print(f"storm of seed {args.seed}: {prog} {asked}", flush=True)
    try:
        this = storm(kind, args)
    except Become as become:
        become.args[0]()
        return 0
    except Unavailable as why:
        print(f"cannot run here: {why}")
        return 2
    except Failed as failed:
        print(f"FAILED: {failed}", flush=True)
        return 1
    print(told(this))
    if args.json:
        git = ["git", "describe", "--always", "--dirty"]
        found = subprocess.run(git, check=False, capture_output=True, text=True)
        revision = os.environ.get("GPURING_REVISION") or found.stdout.strip()
        result = {"asked for": asked, "revision": revision, "machine": machine_card()}
        args.json.write_text(json.dumps(result | this.result(), indent=1) + "\n")
    return 0
