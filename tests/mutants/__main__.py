"""Runs mutants: makes each in a private copy of the checkout, and sees whether its test fails.

Prints a line for each.  Exits with 1 if a mutant survived, or if its entry is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from gpuring.cli.options import count
from tests import ROOT
from tests.mutants import Mutant, load
from tests.mutants.copies import COMPILED, Copy, Run, commands_of, files_of

FINE = ("caught", "timeout", "skipped")
UNMUTATED_S = 300  # for a test without mutants
PATIENCE_S = 30  # for a test with a mutant, plus five times what it took without


class Result(NamedTuple):
    id: str
    outcome: str
    seconds: float
    said: str  # the error of the test, or why there is no result
    test: str


def _verdict(mutant: Mutant, before: Run, copy: Copy, commands: list[str]) -> tuple[str, str]:
    """Returns the outcome and the error."""
    if before.outcome == "skipped":
        return "skipped", "its test is skipped here"
    if before.outcome != "passed":
        return "DOES NOT PASS UNMUTATED", before.said
    try:
        for edit in mutant.edits:
            edit.apply(copy.path)
        copy.build([edit.file for edit in mutant.edits], commands)
    except (OSError, ValueError) as error:
        return "IS NOT THERE", str(error)
    except (subprocess.SubprocessError, SyntaxError) as error:
        return "DOES NOT BUILD", getattr(error, "stderr", None) or str(error)
    run = copy.run(mutant.test, PATIENCE_S + 5 * before.seconds, mutant.gpu)
    if run.outcome == "error":
        return "DOES NOT RUN", run.said
    return {"failed": "caught", "timeout": "timeout"}.get(run.outcome, "SURVIVED"), run.said


def results(mutants: list[Mutant], root: Path, jobs: int) -> Iterator[Result]:
    """Runs each test without its mutants and then with each of them, in so many copies at a
    time."""
    compiled = any(edit.file.endswith(COMPILED) for mutant in mutants for edit in mutant.edits)
    commands = commands_of(root) if compiled else []
    copies: queue.Queue[Copy] = queue.Queue()

    def run(test: str, gpu: bool) -> Run:
        return in_a_copy(lambda copy: copy.run(test, UNMUTATED_S, gpu))

    def judge(mutant: Mutant, unmutated: Future[Run]) -> Result:
        before, begun = unmutated.result(), time.monotonic()
        outcome, said = in_a_copy(lambda copy: _verdict(mutant, before, copy, commands))
        return Result(mutant.id, outcome, round(time.monotonic() - begun, 1), said, mutant.test)

    def in_a_copy(do: Callable[[Copy], Any]) -> Any:
        copy = copies.get()
        try:
            return do(copy)
        finally:
            copy.restore()
            copies.put(copy)

    with tempfile.TemporaryDirectory(prefix="gpuring-mutants-") as place:
        files = files_of(root)
        clean = Copy(root, files, Path(place, "clean"))
        for n in range(jobs):
            copies.put(Copy(clean.path, files, Path(place, str(n))))
        with ThreadPoolExecutor(jobs) as pool:
            try:
                before: dict[str, Future[Run]] = {}
                judged = []
                for mutant in mutants:
                    test = mutant.test
                    if test not in before:
                        before[test] = pool.submit(run, test, mutant.gpu)
                    judged.append(pool.submit(judge, mutant, before[test]))
                for future in as_completed(judged):
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)


def _chosen(root: Path, options: argparse.Namespace) -> list[Mutant]:
    """The mutants that were asked for."""

    def text(mutant: Mutant) -> str:
        return " ".join([mutant.id, mutant.test, *(edit.file for edit in mutant.edits)])

    found = [
        each
        for each in load(root / "tests/mutants")
        if re.search(options.only, text(each)) and each.gpu == options.gpu
    ]
    if options.sample is not None:
        found = random.Random(options.seed).sample(found, min(options.sample, len(found)))
    return found


def _commit(root: Path) -> str:
    """The commit that is checked out, or the date if git gives none."""
    git = ["git", "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(
            git, cwd=root, check=True, capture_output=True, text=True
        ).stdout.strip()
    return time.strftime("%F")


def main(arguments: list[str], root: Path = ROOT) -> int:
    commit = _commit(root)
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--sample", type=count, metavar="N", help="runs a sample of N mutants")
    parser.add_argument("--seed", default=commit, help="chooses the sample (default: the commit)")
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="runs those with it in id, files or test"
    )
    parser.add_argument("--gpu", action="store_true", help="runs only those that need a GPU")
    parser.add_argument("--jobs", type=count, default=len(os.sched_getaffinity(0)), metavar="J")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the results into it, too")
    parser.add_argument("--list", action="store_true", help="lists the mutants, and runs nothing")
    options = parser.parse_args(arguments)
    mutants = _chosen(root, options)
    if options.list:
        print(*(f"{mutant.id:30} {mutant.why}" for mutant in mutants), sep="\n")
        return 0
    if not mutants:
        parser.error("there is no such mutant")
    print(f"{len(mutants)} mutants, {options.jobs} at a time, seed {options.seed}", flush=True)
    begun, done = time.monotonic(), list[Result]()
    for result in results(mutants, root, options.jobs):
        done.append(result)
        print(f"{result.seconds:6.1f} s  {result.outcome:8}  {result.id}", flush=True)
        seconds = round(time.monotonic() - begun)
        counts = Counter(result.outcome for result in done)
        if options.json:  # after each one, in case this program is killed
            told = {
                "commit": commit, "seed": options.seed, "python": sys.version.split()[0],
                "jobs": options.jobs, "seconds": seconds, "counts": counts,
                "mutants": [result._asdict() for result in sorted(done)],
            }  # fmt: skip
            options.json.write_text(json.dumps(told, indent=1) + "\n")
    wrong = [result for result in done if result.outcome not in FINE]
    for result in wrong:
        print(f"\n{result.id} {result.outcome}: {result.test}\n{result.said}")
    print(f"{len(done)} mutants in {seconds} s:", *(f"{n} {o}" for o, n in counts.most_common()))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
