"""copy_from: arrays of any library, of exactly the frame's shape and dtype."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import gpuring
from gpuring.arrays import copying
from gpuring.memory import frameworks
from tests.helpers.arrays import array_of
from tests.memory.fake_gpu import Gpu, forget

FRAME = np.arange(24, dtype="i4").reshape(4, 6)


@pytest.fixture
def slot(place, name):
    with (
        place.create(name, slots=2, shape=(4, 6), dtype="i4") as ring,
        ring.producer() as producer,
        producer.claim() as slot,
    ):
        yield slot


def _numpy():
    return FRAME


def _read_only():
    frame = FRAME.copy()
    frame.flags.writeable = False
    return frame


def _pitched():
    wide = np.zeros((4, 8), "i4")
    wide[:, :6] = FRAME
    return wide[:, :6]


def _torch():
    return pytest.importorskip("torch").from_numpy(FRAME.copy())


def _jax():
    return pytest.importorskip("jax").numpy.asarray(FRAME)


class _OldDlpack:
    """DLPack as in NumPy before 2.1 and torch before 2.9, without max_version."""

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, *, stream=None):
        return FRAME.__dlpack__(stream=stream)


class _Interface:
    __array_interface__ = FRAME.__array_interface__


SOURCES = [_numpy, _read_only, _pitched, _torch, _jax, _OldDlpack, _Interface]


@pytest.mark.parametrize("source", SOURCES)
def test_host_arrays_of_any_library(place, slot, source):
    slot.copy_from(source())
    assert (place.read(slot) == FRAME).all()


def test_any_layout_on_the_host(slot, place):
    source = np.ascontiguousarray(FRAME.T).T
    if place.on_gpu:
        with pytest.raises(ValueError, match="contiguous"):
            slot.copy_from(source)
    else:
        slot.copy_from(source)
        assert (slot.array == FRAME).all()


def test_shape_and_dtype_are_exact(slot, place):
    place.fill(slot, 7)
    for wrong in (FRAME[:1], FRAME[0], FRAME.reshape(6, 4), np.int32(1)):
        with pytest.raises(ValueError, match="shape"):
            slot.copy_from(wrong)
    for wrong in (FRAME.astype("i8"), FRAME.view("u4"), FRAME.view("f4"), FRAME.astype(">i4")):
        with pytest.raises(TypeError, match="int32"):
            slot.copy_from(wrong)
    for nothing in (None, [[1] * 6] * 4, 1, "x"):
        with pytest.raises(TypeError):
            slot.copy_from(nothing)
    assert (place.read(slot) == 7).all()


def test_dtypes_that_came_through_dlpack(slot):
    torch = pytest.importorskip("torch")
    for wrong in (torch.float32, torch.int64):
        with pytest.raises(TypeError, match="int32"):
            slot.copy_from(torch.zeros((4, 6), dtype=wrong))


def test_a_smaller_frame(place, name):
    with (
        place.create(name, slots=2, shape=(4, 6), dtype="i4") as ring,
        ring.producer() as producer,
        producer.claim(shape=(2, 3)) as slot,
    ):
        with pytest.raises(ValueError, match=r"\(2, 3\)"):
            slot.copy_from(FRAME)
        slot.copy_from(FRAME[:2, :3])
        assert (place.read(slot) == FRAME[:2, :3]).all()


def test_a_field_of_several(place, name):
    fields = {"y": ((4, 6), "i4"), "uv": (3, "f8")}
    with (
        place.create(name, slots=2, fields=fields) as ring,
        ring.producer() as producer,
        producer.claim() as slot,
    ):
        slot.copy_from(FRAME, field="y")
        slot.copy_from(np.ones(3), field="uv")
        assert (place.read(array_of(slot, "y")) == FRAME).all()
        assert (place.read(array_of(slot, "uv")) == 1).all()
        with pytest.raises(TypeError, match="'y', 'uv'"):
            slot.copy_from(FRAME)


def test_a_structured_frame(name):
    frame = np.zeros(3, [("x", "f4"), ("n", "i2")])
    frame["n"] = 1, 2, 3
    with (
        gpuring.create(name, slots=2, shape=3, dtype=frame.dtype, device="host") as ring,
        ring.producer() as producer,
        producer.claim() as slot,
    ):
        slot.copy_from(frame)
        assert (slot.array == frame).all()


def test_a_slot_that_was_given_back_takes_no_copy(slot):
    slot.abandon()
    with pytest.raises(gpuring.RingError, match="no longer yours"):
        slot.copy_from(FRAME)


@pytest.mark.parametrize(
    ("shape", "strides", "rows"),
    [
        ((), (), (4, 1, 4)),
        ((5,), (4,), (20, 1, 20)),
        ((4, 6), (24, 4), (96, 1, 96)),
        ((4, 6), (32, 4), (24, 4, 32)),
        ((2, 4, 6), (128, 32, 4), (24, 8, 32)),
        ((2, 1, 6), (64, 9, 4), (24, 2, 64)),
        ((2, 4, 6), (999, 32, 4), None),
        ((4, 6), (4, 16), None),
        ((4, 6), (0, 4), None),
        ((4, 6), (-24, 4), None),
    ],
)
def test_what_is_rows_at_a_pitch(shape, strides, rows):
    assert copying._rows(shape, strides, 4) == rows


# ---- copies out of a slot
# ------------------------------------------------------------------------------


@pytest.fixture
def frame(place, name):
    """A slot as its reader has it."""
    with (
        place.create(name, slots=2, shape=(4, 6), dtype="i4") as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):
        with producer.claim() as slot:
            slot.copy_from(FRAME)
        with consumer.acquire() as slot:
            yield slot


def _wide():
    return np.zeros((4, 8), "i4")[:, :6]


def _torch_zeros():
    return pytest.importorskip("torch").zeros((4, 6), dtype=pytest.importorskip("torch").int32)


class _WritableInterface:
    def __init__(self):
        self._array = np.zeros((4, 6), "i4")
        self.__array_interface__ = self._array.__array_interface__

    def __array__(self, *_, **__):
        return self._array


@pytest.mark.parametrize(
    "out", [lambda: np.zeros((4, 6), "i4"), _wide, _torch_zeros, _WritableInterface],
    ids=["numpy", "pitched", "torch", "interface"],
)  # fmt: skip
def test_a_frame_goes_to_host_arrays_of_any_library(frame, out):
    out = out()
    frame.copy_to(out)
    assert (np.asarray(out) == FRAME).all()


def test_a_frame_goes_to_the_gpu(frame, place):
    cupy = pytest.importorskip("cupy")
    if not place.on_gpu and not cupy.cuda.is_available():
        pytest.skip("there is no GPU")
    out = cupy.zeros((4, 6), "i4")
    frame.copy_to(out)
    assert (out.get() == FRAME).all()
    wide = cupy.zeros((4, 8), "i4")
    frame.copy_to(wide[:, :6])
    assert (wide.get()[:, :6] == FRAME).all()
    assert (wide.get()[:, 6:] == 0).all()


def test_what_a_frame_cannot_go_to(frame):
    for wrong in (np.zeros((6, 4), "i4"), np.zeros(24, "i4"), np.zeros((1, 4, 6), "i4")):
        with pytest.raises(ValueError, match="shape"):
            frame.copy_to(wrong)
    with pytest.raises(TypeError, match="int32"):
        frame.copy_to(np.zeros((4, 6), "u4"))
    with pytest.raises(ValueError, match="array to copy to is read-only"):
        frame.copy_to(_read_only())
    for nothing in (None, [[1] * 6] * 4, 1):
        with pytest.raises(TypeError, match=r"slot\.array is an array of NumPy"):
            frame.copy_to(nothing)
    frame.release()
    with pytest.raises(gpuring.RingError, match="no longer yours"):
        frame.copy_to(np.zeros((4, 6), "i4"))


def test_a_frame_of_a_host_ring_is_copied_by_the_host(name):
    with (
        gpuring.create(name, slots=2, shape=(4, 6), dtype="i4", device="host") as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):
        producer.claim().publish()
        with consumer.acquire() as slot, pytest.raises(TypeError, match="no stream"):
            slot.copy_to(np.zeros((4, 6), "i4"), stream=0)


@pytest.mark.parametrize("into_slot", [False, True])
@pytest.mark.parametrize("current", [0, 1])
def test_a_default_stream_is_that_of_the_slots_gpu(monkeypatch, current, into_slot):
    """The handle of a default stream means that of the current GPU."""
    gpus = Gpu()
    gpus.stack = [current]
    for library in ("cupy", "torch._C"):  # another test may have imported torch
        monkeypatch.setitem(sys.modules, library, None)
    gpus.put_in_place(monkeypatch)
    monkeypatch.setattr(copying, "_kept", [])
    slot, array = FRAME.copy(), FRAME.copy()
    frame = frameworks.Span(slot.ctypes.data, FRAME.shape, FRAME.dtype, 0, None)
    other = copying._Other(
        array.ctypes.data, FRAME.shape, FRAME.strides, FRAME.dtype, None, 1, None, False
    )
    ordered = []
    copying._enqueue(frame, other, 0, lambda *_: ordered.append(gpus.device), into_slot=into_slot)
    work = ("cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent")
    expected = [("cuMemcpyAsync", 0), ("cuEventRecord", 0), ("cuStreamWaitEvent", 1)]
    assert ordered == [0]
    assert [each for each in gpus.called if each[0] in work] == expected[: 2 if into_slot else 3]
    assert gpus.stack == [current]
    forget()
