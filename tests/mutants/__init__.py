"""Mutants: changes of the code, each with the test that fails then.

    python -m tests.mutants                       every mutant, in as many copies as there are cores
    python -m tests.mutants --only reap           those whose id, file or test has `reap`
    python -m tests.mutants --sample 10           some of them, others after each commit
    python -m tests.mutants --gpu                 those that need a GPU; the others must not use one

Each is made in a private copy of the checkout, which has to be built.  Its test has to pass without
the change and to fail with it.  A mutant that survives is a finding: make its test stronger, name
the test that does see it, or, if nobody could ever notice the change, take it out.
Some tests of native/programs and of gpu make mutants themselves.  Each hole of docs/holes.md is
opened by a mutant of its name, or test_lists.py says where it is opened instead.

To add a mutant, write it into the file of what it changes, and run it with `--only`:

    [[mutant]]
    name = "G3"             # a label of docs/holes.md, or a word; the id is FILE:NAME, here reap:G3
    why = "a fence is raised beyond what was promised"         # what the change does, in one line
    file = "gpuring/native/core/reap.c"
    find = '''…'''          # is there once.  Several lines are fine; whole statements read best
    replace = '''…'''
    test = "tests/native/test_reap.py::test_a_frame_…"    # in full, and with [param] if only that
                                                          # one sees it
    gpu = true              # only if the test needs a GPU

A mutant of several places has `edits = [{file = …, find = …, replace = …}, …]` instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10; pytest brings it
    import tomli as tomllib

__all__ = ["Edit", "Mutant", "load"]


@dataclass(frozen=True)
class Edit:
    file: str
    find: str
    replace: str

    def apply(self, root: Path) -> None:
        """Raises ValueError if the file does not have the text exactly once."""
        text = (root / self.file).read_text()
        if (n := text.count(self.find)) != 1:
            raise ValueError(f"{self.file} has this {n} times: {self.find}")
        (root / self.file).write_text(text.replace(self.find, self.replace))


@dataclass(frozen=True)
class Mutant:
    id: str
    why: str
    edits: tuple[Edit, ...]
    test: str
    gpu: bool = False


def load(folder: Path) -> list[Mutant]:
    """The mutants in the files of a folder."""
    return [
        _mutant(path.stem, **entry)
        for path in sorted(folder.glob("*.toml"))
        for entry in tomllib.loads(path.read_text())["mutant"]
    ]


def _mutant(
    room: str, name: str, why: str, test: str, gpu: bool = False,
    edits: list[dict[str, str]] | None = None, **edit: Any,
) -> Mutant:  # fmt: skip
    return Mutant(f"{room}:{name}", why, tuple(Edit(**each) for each in edits or [edit]), test, gpu)
