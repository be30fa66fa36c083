"""`pytest` alone leaves out slow tests and says how many.  They run where tests are named."""

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


@pytest.fixture
def run(tmp_path):
    """Runs pytest, with our conftest.py, where there are quick tests and slow ones."""
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "test_two.py").write_text(TESTS)
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    env = os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def run(*options: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tests.conftest", *options],
            cwd=tmp_path,
            env=env,
            text=True,
            timeout=60,
            capture_output=True,
            check=True,
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
