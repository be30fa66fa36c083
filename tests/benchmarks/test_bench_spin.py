"""`python -m bench.spin`: it compares the ways to wait, and checks frames."""

from __future__ import annotations

import pytest

from bench import spin
from gpuring.cli.measure.attempt import Wrong
from gpuring.cli.measure.figures import line
from gpuring.cli.measure.settings import remove_rings


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    remove_rings()


@pytest.mark.slow
def test_every_way_to_wait_is_measured():
    found = list(spin.on_time(1, 0.1, False, (1.0,)))
    ages = [figure for figure in found if figure.name == "age of a frame"]
    assert {figure.setting["spin"] for figure in ages} == {*spin.WAYS}
    assert all(figure.verified and figure.values.n == 100 for figure in ages)
    shares = {f.setting["spin"]: f.values.p50 for f in found if f.name == "CPU of the reader"}
    assert shares["inf"] > shares["default"]
    assert [figure.values.n for figure in found if figure.name == "timer, late"] == [100]


def test_a_damaged_frame_fails_the_run():
    with pytest.raises(Wrong):
        list(spin.on_time(1, 0.05, True, (1.0,)))


@pytest.mark.gpu
def test_round_trips_are_measured_with_every_way_to_wait():
    found = list(spin.on_gpu(0.1, False))
    assert [line(figure) for figure in found if figure.values is None] == []
    trips = [figure for figure in found if figure.name == "round trip"]
    assert {figure.setting["spin"] for figure in trips} == {*spin.WAYS}
