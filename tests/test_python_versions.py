"""Every place that names the versions of Python names those of the classifiers."""

from __future__ import annotations

import pytest

from tests import ROOT

try:
    import tomllib
except ImportError:  # Python 3.10; pytest brings it
    import tomli as tomllib

OF_PYTHON = "Programming Language :: Python :: 3."
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MINORS = [
    int(each.removeprefix(OF_PYTHON))
    for each in PYPROJECT["project"]["classifiers"]
    if each.startswith(OF_PYTHON)
]
OLDEST, NEWEST = f"3.{MINORS[0]}", f"3.{MINORS[-1]}"


def test_pyproject():
    assert list(range(MINORS[0], MINORS[-1] + 1)) == MINORS
    assert PYPROJECT["project"]["requires-python"] == f">={OLDEST}"  # ruff takes it from there
    assert PYPROJECT["tool"]["mypy"]["python_version"] == OLDEST


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("README.md", f"Python {OLDEST} or newer"),
        ("CHANGELOG.md", f"CPython {OLDEST} to {NEWEST}"),
        ("CONTRIBUTING.md", f"CPython {OLDEST} to {NEWEST}"),
        ("CONTRIBUTING.md", f".ci/wheels dist python{OLDEST} … python{NEWEST}"),
    ],
)
def test_pages(page, words):
    assert words in (ROOT / page).read_text()
