"""`python -m bench.c_api` runs, and each of its ways sees every frame in order."""

from __future__ import annotations

import pytest

from bench import c_api
from tests.helpers.compiled import needs_compiler

pytestmark = [needs_compiler, pytest.mark.slow]


def sides_of(*ways):
    return [f"{way}, {side}" for way in ways for side in ("producer", "consumer")]


def test_it_measures_each_way(tmp_path):
    found = dict(c_api.measure(c_api.build(tmp_path)))
    assert [*found] == sides_of("core", "verbs", "gpuring.h")
    assert all(0 < median <= late for median, late in found.values())


@pytest.mark.gpu
@pytest.mark.parametrize("sync", ["timeline", "event"])
def test_it_measures_each_way_on_a_gpu(tmp_path, sync):
    found = dict(c_api.measure_gpu(c_api.build(tmp_path, "c_api_gpu.c"), sync))
    assert [*found] == sides_of("verbs", "gpuring.h", "Python")
    assert all(0 < median <= late for median, late in found.values())
