"""Each mutant names code and a test that exist, and a mutant that survives is reported."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from tests import ROOT, TESTS
from tests.docs.labels import explained
from tests.helpers.rings import small_ring
from tests.mutants import __main__ as program
from tests.mutants import load
from tests.mutants.copies import own_shm

MUTANTS = load(TESTS / "mutants")


def test_each_mutant_changes_code_that_is_there_once():
    wrong = [
        f"{mutant.id}: {edit.file} has this {n} times: {edit.find}"
        for mutant in MUTANTS
        for edit in mutant.edits
        if (n := (ROOT / edit.file).read_text().count(edit.find)) != 1 or edit.find == edit.replace
    ]
    assert not wrong, "\n".join(wrong)


def test_the_test_of_each_mutant_is_there():
    def is_there(test: str) -> bool:
        file, _, name = test.partition("::")
        function = re.escape(name.partition("[")[0])
        path = ROOT / file
        return path.exists() and bool(
            re.search(rf"^(async )?def {function}\(", path.read_text(), re.M)
        )

    wrong = [f"{mutant.id}: {mutant.test}" for mutant in MUTANTS if not is_there(mutant.test)]
    assert not wrong, "\n".join(wrong)


def test_each_has_its_own_id():
    assert not [name for name, n in Counter(mutant.id for mutant in MUTANTS).items() if n > 1]


# ---- the holes of docs/holes.md ----------------------------------------------------------------

ELSEWHERE = {
    "A2": ("tests/mutants/reap.toml", 'name = "A3"'),
    "A7": ("tests/native/test_threads.py", "a leave does not wait for verbs"),
    "A8": ("tests/native/test_threads.py", "nobody looks for orphans"),
    "A10": ("tests/native/test_threads.py", "a leave takes nothing back"),
    "A11": ("tests/native/test_threads.py", "an orphan is opened without a word"),
    "A12": ("tests/native/test_threads.py", "a verb is counted after its look"),
    "D1": ("tests/native/test_wakeups.py", "select reads the bells after the looks"),
    "D2": ("tests/native/test_wakeups.py", "select announces itself to nobody"),
    "D7": ("tests/native/test_wakeups.py", "arming does not kick the notifier thread"),
    "D9": ("tests/native/test_wakeups.py", "arming announces itself to nobody"),
    "D11": ("tests/native/test_wakeups.py", "select sleeps at the first bell only"),
    "D12": ("tests/kill/test_kill_matrix.py", "a reaper frees the entry first"),
    "G13": ("tests/native/test_device_stress.py", "a look at a slot of others raises its fence"),
}
"""Holes that a mutant opens under another name: where it is, and what it is called there."""


def test_each_hole_is_opened_by_a_mutant():
    holes = {label for label in explained() if not label.startswith("edge")}
    here = {mutant.id.partition(":")[2].partition("-")[0] for mutant in MUTANTS}
    assert holes - here == ELSEWHERE.keys()
    for label, (file, name) in ELSEWHERE.items():
        assert name in (ROOT / file).read_text(), label


# ---- the runner, where a test sees one of three mutants ----------------------------------------

CODE = "def double(n):\n    return n * 2\n\ndef halve(n):\n    return n // 2\n"
TEST = """\
from pathlib import Path

from code_of_mine import double, halve

def test_double():
    assert double(2) == 4

def test_halve():
    assert halve(4) == 3

def test_alone():
    assert double(2) == 4
    assert not list(Path("/dev/shm").iterdir())
"""
LIST = '''\
[[mutant]]
name = "{name}"
why = "planted"
file = "tests/code_of_mine.py"
find = "{find}"
replace = "{replace}"
test = "tests/test_it.py::{test}"
'''  # fmt: skip


@pytest.fixture
def run(tmp_path, capsys):
    """Runs mutants of a small project.  Returns the exit status, the outcomes, and what was
    printed."""

    def run(*mutants: tuple[str, str, str, str]) -> tuple[int, dict, str]:
        folder = tmp_path / "tests/mutants"
        folder.mkdir(parents=True)
        (folder / "it.toml").write_text(
            "".join(
                LIST.format(name=name, find=find, replace=replace, test=test)
                for name, find, replace, test in mutants
            )
        )
        (tmp_path / "tests/code_of_mine.py").write_text(CODE)
        (tmp_path / "tests/test_it.py").write_text(TEST)
        out = tmp_path / "out.json"
        status = program.main(["--json", str(out), "--jobs", "1"], root=tmp_path)
        told = json.loads(out.read_text())["mutants"]
        assert (tmp_path / "tests/code_of_mine.py").read_text() == CODE
        return status, {each["id"]: each["outcome"] for each in told}, capsys.readouterr().out

    return run


@pytest.mark.slow
def test_a_mutant_that_survives_is_named(run):
    status, outcomes, said = run(
        ("seen", "n * 2", "n * 3", "test_double"), ("planted", "n * 2", "n + n", "test_double")
    )
    assert outcomes == {"it:seen": "caught", "it:planted": "SURVIVED"}
    assert "it:planted SURVIVED: tests/test_it.py::test_double" in said
    assert status == 1


@pytest.mark.slow
def test_a_mutant_sees_no_rings_of_others(run, name):
    if not own_shm():
        pytest.skip("no mount namespaces here")
    with small_ring(name):
        _, outcomes, _ = run(("alone", "n * 2", "n * 3", "test_alone"))
    assert outcomes == {"it:alone": "caught"}


@pytest.mark.slow
def test_an_entry_that_is_wrong_catches_nothing(run):
    status, outcomes, _ = run(
        ("elsewhere", "n * 4", "n", "test_double"),
        ("nonsense", "n * 2", "n *", "test_double"),
        ("failing", "n // 2", "n / 2", "test_halve"),
        ("no test", "n * 2", "n * 3", "test_triple"),
    )
    assert outcomes == {
        "it:elsewhere": "IS NOT THERE",
        "it:nonsense": "DOES NOT BUILD",
        "it:failing": "DOES NOT PASS UNMUTATED",
        "it:no test": "DOES NOT PASS UNMUTATED",
    }
    assert status == 1
