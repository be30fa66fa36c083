"""Creator and attacher see the same dtypes, whatever they are; what cannot be described is refused.

`exactly` compares more than NumPy's ==, which ignores titles in some releases, the class of a
scalar, and whether a type belongs to another library.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpuring
from gpuring import slot_layout

ml_dtypes: ModuleType | None
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

FOREIGN = (
    [np.dtype(getattr(ml_dtypes, name)) for name in ("float8_e4m3", "int4", "uint4", "bfloat16")]
    if ml_dtypes
    else []
)
needs_ml_dtypes = pytest.mark.skipif(ml_dtypes is None, reason="ml_dtypes is not installed")


def exactly(dtype: np.dtype[Any]) -> Any:
    """Everything by which two dtypes may differ for the user of an array."""
    if dtype.subdtype:
        return "array", exactly(dtype.subdtype[0]), dtype.subdtype[1]
    head = type(dtype).__name__, dtype.kind, dtype.str, dtype.itemsize, dtype.type
    fields = [
        (name, exactly(part), *more)  # offset, title
        for name in dtype.names or ()
        for part, *more in [dtype.fields[name]]
    ]
    return head, fields


def plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """`dtype` without what a description may leave out: np.record, metadata, the mark `align`, and
    by which of C's names an integer is known."""
    if dtype.subdtype:
        return np.dtype((plain(dtype.subdtype[0]), dtype.subdtype[1]))
    if dtype.names is None:
        return np.dtype(dtype.str) if dtype.isbuiltin != 2 else dtype  # 2: another library's
    fields = [dtype.fields[name] for name in dtype.names]
    return np.dtype(
        {
            "names": list(dtype.names),
            "formats": [plain(field[0]) for field in fields],
            "offsets": [field[1] for field in fields],
            "titles": [field[2] if len(field) > 2 else None for field in fields],
            "itemsize": dtype.itemsize,
        }
    )


# ---- any dtype ---------------------------------------------------------------------------------

units = st.sampled_from(["", "[Y]", "[D]", "[s]", "[25s]", "[ns]", "[10us]"])
scalars = st.one_of(
    st.sampled_from("?bBhHiIlLqQefdgFDG").map(np.dtype),
    st.builds("{}{}".format, st.sampled_from("SUV"), st.integers(1, 9)).map(np.dtype),
    st.builds("{}8{}".format, st.sampled_from("Mm"), units).map(np.dtype),
)
ordered = st.builds(lambda d, order: d.newbyteorder(order), scalars, st.sampled_from("<>"))
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)
shapes = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)


@st.composite
def structures(draw: Any, parts: Any) -> np.dtype[Any]:
    keys = draw(st.lists(names, min_size=2, max_size=8, unique=True))
    n = draw(st.integers(1, len(keys) // 2))
    formats = [draw(parts) for _ in range(n)]
    described = {"names": keys[:n], "formats": formats}
    if draw(st.booleans()):
        described["titles"] = [draw(st.sampled_from([None, keys[n + k]])) for k in range(n)]
    if draw(st.booleans()):
        return np.dtype(described, align=draw(st.booleans()))
    offsets, end = [], 0
    for each in formats:
        offsets.append(end + draw(st.integers(0, 5)))
        end = offsets[-1] + each.itemsize
    described |= {"offsets": offsets, "itemsize": end + draw(st.integers(0, 5))}
    dtype = np.dtype(described)
    return np.dtype((np.record, dtype)) if draw(st.booleans()) else dtype


def nested(leaves: Any) -> Any:
    arrays = st.builds(lambda d, shape: np.dtype((d, shape)), leaves, shapes)
    return st.recursive(leaves | arrays, structures, max_leaves=6)


marked = st.builds(lambda d: np.dtype(d, metadata={"unit": "m"}), scalars)
describable = nested(ordered | marked)
foreign = nested(ordered | st.sampled_from(FOREIGN)) if FOREIGN else describable


def both_sides(dtype: np.dtype[Any], **options: Any) -> slot_layout.Field:
    """The field of `dtype` as its creator makes it.  Everybody else reads the same."""
    made = slot_layout.make(shape=(2,), dtype=dtype, **options)
    read = slot_layout.Spec.from_bytes(made.to_bytes())
    assert made == read
    assert made.to_bytes() == read.to_bytes()
    assert exactly(made.fields[0].dtype) == exactly(read.fields[0].dtype)
    return made.fields[0]


@pytest.mark.slow
@given(describable)
@settings(deadline=None)
def test_what_numpy_has_is_the_same_on_both_sides(dtype):
    field = both_sides(dtype)
    element, inner = dtype.subdtype or (dtype, ())
    assert field.shape == (2, *inner)
    assert exactly(field.dtype) == exactly(plain(element))


@pytest.mark.slow
@given(structures(describable))
@settings(deadline=None)
def test_metadata_is_the_same_on_both_sides(dtype):
    made = slot_layout.make(shape=1, dtype="u1", meta=dtype)
    read = slot_layout.Spec.from_bytes(made.to_bytes())
    assert exactly(made.meta) == exactly(read.meta) == exactly(plain(dtype))


@given(foreign)
@settings(deadline=None)
@pytest.mark.slow
def test_another_librarys_type_is_refused_or_the_same_on_both_sides(dtype):
    with contextlib.suppress(ValueError):
        element = dtype.subdtype[0] if dtype.subdtype else dtype
        assert exactly(both_sides(dtype).dtype) == exactly(plain(element))


@contextlib.contextmanager
def pair(name: str, **options: Any) -> Iterator[Any]:
    """A ring of frames of two elements: its creator's and an attacher's handle, a peer of each."""
    with (
        gpuring.create(name, slots=2, shape=2, device="host", **options) as ring,
        gpuring.attach(name) as other,
        ring.producer() as producer,
        other.consumer() as frames,
    ):
        yield ring, other, producer, frames


# ---- those that were not the same --------------------------------------------------------------


def test_an_element_that_is_an_array_adds_to_the_frames_shape(name):
    """NumPy does this everywhere."""
    points = np.dtype(("i4", (3,)))
    with pair(name, dtype=points) as (ring, other, producer, frames):
        assert other.spec == ring.spec
        with producer.claim() as slot:
            slot.array[...] = np.arange(6).reshape(2, 3)
        with frames.acquire(0) as slot:
            assert slot.array.dtype == "i4"
            assert slot.array.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_elements_have_no_more_dimensions_than_arrays():
    with pytest.raises(ValueError, match="at most 8 dimensions"):
        slot_layout.make(shape=(1,) * 6, dtype=("u1", (2, 2, 2)))


def test_a_field_with_a_title_has_it_on_both_sides(name):
    meta = np.dtype([(("when it was taken", "pts"), "i8")])
    with pair(name, dtype="u1", meta=meta) as (_ring, _other, producer, frames):
        with producer.claim() as slot:
            slot.meta["pts"] = 7
        with frames.acquire(0) as slot:
            assert slot.meta["when it was taken"] == 7


REFUSED = [
    pytest.param(np.dtype([((b"\xff", "a"), "i4")]), id="a title that JSON does not have"),
    pytest.param(np.dtype([(((1, 2), "a"), "i4")]), id="a title that JSON changes"),
    pytest.param(
        np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2]}),
        id="overlapping",
    ),
    pytest.param(np.dtype({"names": ["", "b"], "formats": ["V4", "i4"]}), id="no name"),
]


@pytest.mark.parametrize("dtype", REFUSED)
@pytest.mark.parametrize("where", ["field", "meta"])
def test_what_cannot_be_described_is_refused_before_anything_is_made(name, dtype, where):
    options = {"dtype": dtype} if where == "field" else {"dtype": "u1", "meta": dtype}
    with pytest.raises(ValueError, match="cannot be described to other processes"):
        gpuring.create(name, slots=2, shape=2, device="host", **options)


@needs_ml_dtypes
@pytest.mark.parametrize("kind", ["float8_e4m3", "int4", "float8_e8m0fnu"])
def test_a_type_that_ml_dtypes_alone_has_is_refused_with_what_to_do(name, kind):
    dtype = np.dtype(getattr(ml_dtypes, kind))
    with pytest.raises(ValueError, match=r'dtype="u1" and slot\.array\.view'):
        gpuring.create(name, slots=2, shape=2, dtype=dtype, device="host")


@needs_ml_dtypes
@pytest.mark.parametrize("kind", slot_layout.EXTENDED)
def test_an_extended_type_within_a_structure_is_refused(name, kind):
    dtype = np.dtype([("x", getattr(ml_dtypes, kind))])
    for options in ({"dtype": dtype}, {"dtype": "u1", "meta": dtype}):
        with pytest.raises(ValueError, match="unsigned integers"):
            gpuring.create(name, slots=2, shape=2, device="host", **options)


@needs_ml_dtypes
def test_an_extended_type_of_another_byte_order_is_refused():
    dtype = np.dtype(ml_dtypes.bfloat16).newbyteorder(">")
    with pytest.raises(ValueError, match="cannot be described"):
        slot_layout.make(shape=2, dtype=dtype)


@needs_ml_dtypes
@pytest.mark.parametrize("kind", slot_layout.EXTENDED)
def test_numpy_sees_an_extended_type_of_a_slot(name, kind):
    """Its array interface would call it void bytes."""
    options = {"slots": 2, "device": "host"}
    with (
        gpuring.create(name, fields={"x": (3, kind)}, **options) as ring,
        ring.producer() as producer,
        ring.consumer() as frames,
    ):
        with producer.claim() as slot:
            np.asarray(slot.field("x"))[...] = 1.5
        with frames.acquire(0) as slot:
            seen = np.asarray(slot.field("x"))
            assert (seen.dtype, seen.flags.writeable) == (getattr(ml_dtypes, kind), False)
            assert np.shares_memory(seen, slot["x"])
            assert np.array(slot.field("x"), "f4").tolist() == [1.5] * 3


@needs_ml_dtypes
def test_who_has_no_ml_dtypes_sees_the_bits(name, monkeypatch):
    dtype = np.dtype((ml_dtypes.bfloat16, (3,)))
    with gpuring.create(name, slots=2, shape=2, dtype=dtype, device="host") as ring:
        assert ring.spec.fields[0].dtype == ml_dtypes.bfloat16
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        with gpuring.attach(name) as other, other.consumer() as frames, ring.producer() as producer:
            (field,) = other.spec.fields
            assert (field.dtype, field.extended, field.shape) == ("u2", "bfloat16", (2, 3))
            assert field.nbytes == ring.spec.fields[0].nbytes
            with producer.claim() as slot:
                slot.array[...] = 1.5
            with frames.acquire(0) as slot:
                assert (slot.array == 0x3FC0).all()


# ---- on a ring and in a service ----------------------------------------------------------------

few = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@given(dtype=describable, meta=structures(describable), data=st.binary(min_size=1, max_size=64))
@few
def test_a_frame_reads_as_it_was_written(name, dtype, meta, data):
    with pair(name, dtype=dtype, meta=meta) as (ring, other, producer, frames):
        assert exactly(other.spec.fields[0].dtype) == exactly(ring.spec.fields[0].dtype)
        with producer.claim() as slot:
            for written in (slot.array, np.asarray(slot.meta)):
                size = written.nbytes
                view = np.ndarray(size, "u1", written)
                view[...] = np.frombuffer(data * size, "u1", size)
            expected = slot.array.dtype, slot.array.shape, slot.array.tobytes(), slot.meta.tobytes()
        with frames.acquire(0) as slot:
            found = slot.array.dtype, slot.array.shape, slot.array.tobytes(), slot.meta.tobytes()
            assert found == expected


@given(request=describable, response=describable, meta=structures(describable))
@few
def test_both_sides_of_a_service_see_the_same(name, request, response, meta):
    with (
        gpuring.serve(
            name,
            request=((2,), request),
            response=((2,), response),
            request_meta=meta,
            response_meta=meta,
            device="host",
        ) as server,
        gpuring.connect(name) as client,
    ):
        assert exactly(client._mailbox.terms.response.meta) == exactly(server._terms.response.meta)
        with client.request(1) as slot:
            sent, asked = slot.call, (slot.array.dtype, slot.array.shape, slot.meta.dtype)
        (call,) = server.take(timeout=1)
        assert (call.array.dtype, call.array.shape, call.meta.dtype) == asked
        with call.answer() as slot:
            answered = slot.array.dtype, slot.array.shape, slot.meta.dtype
        with sent.result(1) as slot:
            assert (slot.array.dtype, slot.array.shape, slot.meta.dtype) == answered


def test_a_description_is_json_without_python_in_it():
    described = slot_layout.make(
        shape=2, dtype=[(("t", "a"), "M8[ns]", (2,)), ("b", [("c", ">f4")])]
    )
    assert json.loads(described.to_bytes())["fields"] == [
        ["array", [2], [[["t", "a"], "<M8[ns]", [2]], ["b", [["c", ">f4"]]]]]
    ]
