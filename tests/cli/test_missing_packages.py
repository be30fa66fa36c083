"""Commands whose packages are not installed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers.commands import DEADLINE_S
from tests.helpers.rings import small_ring


def without(module, *options, before="", cwd=None):
    """Runs a command where a package is not installed."""
    program = f"import sys; sys.modules[{module!r}] = None; import gpuring.cli as c; {before}"
    return subprocess.run(
        [sys.executable, "-c", f"{program}sys.exit(c.main({[*options]!r}))"],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def test_top_needs_no_package_where_nothing_is_live(name):
    with small_ring(name):
        done = without("rich", "top", "--once", "--interval", "0.01", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert name in done.stdout


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("rich", ["top"]),
        ("prometheus_client", ["metrics", "--once"]),
        ("PIL", ["tap", "x", "--out", "x", "--format", "png"]),
    ],
)
def test_a_missing_package_is_one_line_with_the_pip_command(module, options, tmp_path):
    on_a_terminal = "sys.stdout.isatty = lambda: True; "
    done = without(module, *options, before=on_a_terminal, cwd=tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "pip install 'gpuring[tools]'" in done.stderr
    assert list(tmp_path.iterdir()) == []
