"""`gpuring doctor` says which rings are full, and who is in the way."""

from __future__ import annotations

from gpuring.cli.doctor import examine, fullness
from tests.helpers.rings import drain, put, small_ring

SLOTS = 4


def test_a_ring_that_is_full_is_a_warning_and_names_who_is_in_the_way(name):
    with (
        small_ring(f"{name}.full", SLOTS) as full,
        small_ring(f"{name}.free", SLOTS) as free,
        full.producer() as producer,
        free.producer() as other,
        full.consumer("recorder"),
        free.consumer("recorder") as reader,
    ):
        put(producer, SLOTS)
        put(other, SLOTS)
        drain(reader)
        seen = fullness.look([full.name, free.name, f"{name}.gone"], 0.05)
        assert seen.full == {full.name: seen.looks}
        found = fullness.full_rings(seen)
        assert found.level == "warn"
        assert f"{full.name} at {seen.looks} of {seen.looks} look" in found.found
        assert "subscription 'recorder' has not taken sequence 4" in found.found
        assert free.name not in found.found
        assert "docs/sizing.md" in found.fix


def test_a_ring_that_is_full_now_and_then_is_not():
    seen = fullness.Fullness(100, {"x": 1}, {"x": "somebody"})
    assert fullness.full_rings(seen).level == "ok"
    assert fullness.full_rings(fullness.Fullness(100, {"x": 2}, {"x": "somebody"})).level == "warn"


def test_only_rings_with_a_producer_are_looked_at(name, monkeypatch):
    looked = []
    monkeypatch.setattr(fullness, "look", lambda names: looked.extend(names) or _NOTHING)
    with small_ring(f"{name}.a") as ring, small_ring(f"{name}.b"), ring.producer():
        findings = examine(0, probing=False)
        while next(findings).what != "full rings":
            pass
        findings.close()
        assert ring.name in looked
        assert f"{name}.b" not in looked


_NOTHING = fullness.Fullness(1, {}, {})
