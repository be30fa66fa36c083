"""The C code reads every description of slots that Python writes, and refuses all harmful ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from gpuring import native, slot_layout

GOOD = {"fields": [["y", [4, 6], "|u1"]], "meta": None, "canary": 0}


def read(described: object) -> object:
    return native.read_spec(json.dumps(described).encode())


def test_offsets_are_multiples_of_256_and_sizes_are_numpys():
    found, slot_nbytes, meta_nbytes = read(
        {
            "fields": [["a", [3], "<f8"], ["b", [], "bfloat16"], ["c", [257], "|u1"]],
            "meta": [["x", "<i8"], ["", "|V4"], [["title", "y"], "<f4", [2, 2]]],
        }
    )
    assert found == [
        ("a", (3,), "<f8", 0), ("b", (), "bfloat16", 256), ("c", (257,), "|u1", 512),
    ]  # fmt: skip
    assert (slot_nbytes, meta_nbytes) == (1024, 28)


_plain = of_numpy.scalar_dtypes() | of_numpy.unicode_string_dtypes() | of_numpy.byte_string_dtypes()
_dtypes = _plain | of_numpy.nested_dtypes(_plain, max_leaves=6, max_itemsize=600)


@settings(max_examples=200)
@given(dtype=_dtypes, shape=of_numpy.array_shapes(max_dims=4), name=st.text(min_size=1, max_size=9))
def test_what_python_writes_c_reads_as_python_does(dtype, shape, name):
    try:
        spec = slot_layout.make(fields={name: (shape, dtype)}, meta=[("m", "i8")])
    except (ValueError, TypeError):
        return  # NumPy or slot_layout.py refuses it
    (field,) = spec.fields
    (found,), slot_nbytes, meta_nbytes = native.read_spec(spec.to_bytes())
    assert found[:2] == (field.name, field.shape)
    assert (slot_nbytes, meta_nbytes) == (-(-field.nbytes // 256) * 256, 8)
    assert slot_layout.Spec.from_bytes(spec.to_bytes()) == spec


def deep(n: int) -> object:
    return "<f4" if n == 0 else [["x", deep(n - 1)]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"fields": []}, "at least one field"),
        ({"fields": [["", [1], "|u1"]]}, "has no name"),
        ({"fields": [["y", [1], "|u1"], ["y", [1], "|u1"]]}, "field 'y': two fields have one name"),
        ({"meta": [["a", "<i8"], ["a", "<i8"]]}, "field 'a': two fields have one name"),
        ({"meta": [["a", [["b", "<i8"], ["c", "<i3"]]]]}, "field 'a': there is no such dtype"),
        ({"fields": [["y\0", [1], "|u1"]]}, "zero byte"),
        ({"fields": [["y", [0], "|u1"]]}, "positive"),
        ({"fields": [["y", [1] * 9, "|u1"]]}, "too many dimensions"),
        ({"fields": [["y", [1.5], "|u1"]]}, "no integer"),
        ({"fields": [["y", [2**40, 2**40], "|u1"]]}, "1 TiB"),
        ({"fields": [["y", [2**60], "|u1"]]}, "field 'y': a slot has at most 1 TiB"),
        ({"fields": [["y", [2**40], "<f4"]]}, "1 TiB"),
        ({"fields": [["y", [2**70], "|u1"]]}, "too large"),
        ({"fields": [["y", [2**39], "|u1"], ["z", [2**39 + 1], "|u1"]]}, "1 TiB"),
        ({"fields": [["y", [1], "|O8"]]}, "no such dtype"),
        ({"fields": [["y", [1], "<f3"]]}, "no such dtype"),
        ({"fields": [["y", [1], "<V0"]]}, "no size"),
        ({"fields": [["\x1b", [1], "|O8"]]}, r"field '\\x1b': there is"),
        ({"fields": [["y", [1], deep(20)]]}, "too deep"),
        ({"meta": []}, r"no fields \(byte \d+ of its description"),
        ({"meta": [["a", "|V65537"]]}, "^metadata has at most 65536 bytes"),
        ({"meta": [["a", "|V1000000", [2000000]]]}, "1 TiB"),
        ({"canary": 7}, "^a canary is odd"),
        ({"canary": -1}, "in place of a number"),
    ],
)
def test_a_description_with_a_wrong_value_is_refused(change, told):
    assert read(GOOD)
    with pytest.raises(ValueError, match=told):
        read(GOOD | change)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b'{"fields": 1}', b'{"meta": null}', b'{"fields": [["y", [1], "|u1"]]}',
        json.dumps(GOOD).encode() + b"x", json.dumps(GOOD).encode()[:-1],
        b'{"meta": null, "meta": null, "fields": [["y", [1], "|u1"]]}',
        b'{"meta": null, "fields": [["\\ud8', b'{"meta": null, "fields": [["\\', b'{"x": "\\',
        b'{"x": ' + b"[" * 5000, b'{"about": {"lost": 3', b'{"meta": nul',
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_description_is_refused(text):
    with pytest.raises(ValueError, match="of its description"):
        native.read_spec(text)


@settings(max_examples=500)
@given(data=st.data())
def test_damage_is_refused_or_harmless(data):
    text = bytearray(json.dumps(GOOD | {"meta": [["a", "<i8"], [["t", "b"], "<f4", [2]]]}).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    try:
        found, slot_nbytes, _ = native.read_spec(bytes(text))
    except (ValueError, UnicodeDecodeError):
        return
    assert found
    assert 0 < slot_nbytes <= 2**40
    assert all(np.prod(shape, dtype=object) <= slot_nbytes for _, shape, _, _ in found)
