"""What people see: reprs, help(), dir(), and the traceback if there is no GPU."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import traceback

import pytest

import gpuring
from gpuring.memory import cuda, frameworks


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ({"shape": (3, 4), "dtype": "f4", "meta": [("pts", "i8")]}, "(3, 4) float32, meta pts"),
        (
            {"fields": {"y": ((4, 6), "u1"), "uv": ((2, 3, 2), "bfloat16")}},
            "y (4, 6) uint8, uv (2, 3, 2) bfloat16",
        ),
        (
            {"shape": 8, "dtype": "u1", "meta": [("pts", "i8"), ("roi", "f4", 4)]},
            "(8,) uint8, meta pts roi",
        ),
    ],
)
def test_a_ring_shows_what_its_slots_hold(name, what, shown):
    with gpuring.create(name, slots=4, **what, device="host") as ring:
        assert repr(ring) == f"<Ring {name!r}: 4 × {shown}, host>"
        with gpuring.attach(name) as other:
            assert repr(other) == repr(ring)
    assert repr(ring) == f"<Ring {name!r}: closed>"


def test_a_ring_shows_where_its_slots_are(place, name):
    with place.create(name, slots=4, shape=3, dtype="f4") as ring:
        where = f"{ring.memory}, {ring.sync}" if place.memory != "host" else "host"
        assert repr(ring) == f"<Ring {name!r}: 4 × (3,) float32, {where}>"


@pytest.mark.parametrize("module", ["", ".bridge", ".recording", ".torch"])
def test_dir_is_the_public_names(module):
    if module == ".torch":
        pytest.importorskip("torch")
    shown = importlib.import_module(f"gpuring{module}")
    assert dir(shown) == sorted(shown.__all__)


def test_a_field_and_a_loop_show_what_they_are_of(name):
    fields = {"y": (4, "u1"), "uv": (2, "u1")}
    with (
        gpuring.create(name, slots=2, fields=fields, device="host") as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):
        with producer.claim(0) as slot:
            assert repr(slot.field("uv")) == f"<SlotField 'uv' of {slot!r}>"
        frames = iter(consumer)
        assert repr(frames) == f"<Frames of {consumer!r}>"
        frames.close()
        assert repr(frames) == "<Frames, ended>"


def test_a_ring_that_is_made_by_hand_says_where_rings_come_from(name):
    with pytest.raises(TypeError, match=r"comes from gpuring\.create\(\) or gpuring\.attach\(\)"):
        gpuring.Ring(name)


@pytest.mark.parametrize("function", [gpuring.create, gpuring.serve])
def test_help_shows_permissions_as_they_are_written_and_nothing_private(function):
    shown = pydoc.plain(pydoc.render_doc(function))
    signature = shown.partition(function.__doc__.splitlines()[0])[0]  # several lines in 3.13
    assert "0o600" in signature
    assert "384" not in shown
    assert "Gate" not in signature
    default = inspect.signature(function).parameters["mode"].default
    assert default == 0o600
    assert not any(name.startswith("_") for name in inspect.signature(function).parameters)


@pytest.mark.skipif(cuda.available()[0], reason="there is a GPU")
def test_a_missing_gpu_is_one_traceback(name):
    """The errors of the lookups before it would add nothing."""
    with pytest.raises(gpuring.DeviceError) as caught:
        gpuring.create(name, slots=2, shape=3, dtype="u1")
    told = "".join(traceback.format_exception(caught.value))
    assert told.count("Traceback") == 1
    assert "there is no NVIDIA driver (libcuda.so.1: cannot open" in told.splitlines()[-1]


def test_a_cupy_that_cannot_be_imported_shows_why(monkeypatch):
    def broken(name):
        raise ImportError("libcudart.so.12: cannot open shared object file")

    frameworks.cupy.cache_clear()
    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(gpuring.DeviceError, match="cannot open shared") as caught:
        frameworks.cupy()
    assert isinstance(caught.value.__cause__, ImportError)
