"""Whether anybody still has a slot or a call, by Python's reference counts."""

from __future__ import annotations

import pytest

import gpuring
from gpuring.ring.whose import nobody_has, references


class Call:
    pass


def test_references_are_those_of_everybody_who_has_it():
    calls = {Call()}
    listed = list(calls)
    assert references(listed, 0) == 2
    for k in range(1):
        call = listed[k]
        assert references(listed, k) == 3
    kept = [call]
    assert references(listed, 0) == 4
    del kept


PARTS = {
    "the slot": lambda slot: slot,
    "its metadata": lambda slot: slot.meta,
    "an array": lambda slot: slot["x"],
    "a view of an array": lambda slot: slot["x"][1:],
}


@pytest.mark.parametrize("part", PARTS)
def test_who_has_a_slot_or_a_part_of_it_is_seen(name, part):
    options = {"fields": {"x": (4, "u1"), "y": (4, "u1")}, "meta": [("n", "i8")]}
    with (
        gpuring.create(name, slots=2, device="host", **options) as ring,
        ring.producer() as producer,
    ):
        slot = producer.claim(0)
        index = slot.index
        assert not nobody_has(producer._slots, index)
        assert nobody_has(producer._slots, index, known=1)
        kept = PARTS[part](slot)
        del slot
        assert not nobody_has(producer._slots, index)
        del kept
        assert nobody_has(producer._slots, index)
