"""What tests/conftest.py does with a run of tests.

`pytest` alone leaves out slow tests and says how many.  They run where tests are named.  A test
that fails says why, and not also what its traceback keeps.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import ROOT

INI = "[pytest]\ntestpaths = .\nmarkers = slow(keep): takes long\n    gpu: needs a GPU\n"
TESTS = """
import pytest

def test_quick(): pass

@pytest.mark.slow
def test_long(): pass

@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_one_of_many(n): assert n
"""


LEAVES = """
import gpuring

def test_leaves(name):
    ring = gpuring.create(name, slots=2, shape=4, dtype="u1", device="host")
    assert ring.slots == {slots}
    ring._kept = ring  # after the test, too
"""


@pytest.fixture
def run(tmp_path):
    """Runs pytest, with our conftest.py, where there are quick tests and slow ones."""
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "test_two.py").write_text(TESTS)
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    env = os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def run(*options: str, check: bool = True) -> str:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tests.conftest", *options],
            cwd=tmp_path,
            env=env,
            text=True,
            timeout=60,
            capture_output=True,
            check=check,
        ).stdout

    return run


def test_slow_tests_are_left_out_and_told(run):
    said = run()
    assert "2 passed, 3 deselected" in said, "test_quick, and the first of three"
    assert "3 were left out: `pytest --slow` runs them, too." in said


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("options", [["--slow"], ["test_two.py"], ["-m", "not gpu"]])
def test_all_run_where_they_are_asked_for(run, options):
    said = run(*options)
    assert "5 passed" in said
    assert "left out" not in said


def test_a_slow_test_runs_by_its_name(run):
    assert "1 passed, 4 deselected" in run("-k", "long")


@pytest.mark.parametrize(("slots", "said"), [(2, "1 passed, 1 error"), (3, "1 failed in")])
def test_what_a_test_leaves_behind_is_told_unless_it_has_failed(run, tmp_path, slots, said):
    (tmp_path / "test_leaves.py").write_text(LEAVES.format(slots=slots))
    told = run("test_leaves.py", check=False)
    assert said in told
    assert ("left behind" in told) == (slots == 2)
