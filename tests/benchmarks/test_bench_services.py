"""`python -m bench.services` without a GPU."""

from __future__ import annotations

import pytest

from gpuring.cli.measure import stored
from tests import ROOT
from tests.helpers.commands import module


@pytest.mark.slow
def test_another_checkout_is_measured_in_turns_with_this_one(tmp_path):
    out = tmp_path / "services.json"
    short = ["--forms", "one", "--rounds", "2", "--seconds", "0.05", "--device", "host"]
    done = module("bench.services", *short, "--against", ROOT, "--json", out, cwd=ROOT, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    found = stored.load(out).figures
    of_each = [
        {
            (figure.program, figure.name)
            for figure in found
            if figure.setting.get("checkout") == which
        }
        for which in (None, "other")
    ]
    assert of_each[0] == of_each[1]
    assert {program for program, _ in of_each[0]} == {"two rings", "service"}
    assert all(figure.values and figure.values.n == 2 for figure in found)
