"""What a source distribution and a wheel have is what the extension modules are built from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def sources() -> list[Path]:
    """What git tracks in the package, without the Python modules: those are always packed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files", "gpuring"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return [Path(line) for line in listed.stdout.splitlines() if not line.endswith(".py")]


def test_every_source_is_packed():
    tomllib = pytest.importorskip("tomllib")
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packed = {
        path.relative_to(ROOT)
        for package, patterns in tool["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    found = sources()
    assert Path("gpuring/_core.pyx") in found
    assert not [str(path) for path in found if path not in packed]
