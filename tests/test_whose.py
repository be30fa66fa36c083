"""Whether anybody has something, by Python's references: in each version of it.

The module needs nothing of the package, so this can be run by hand with interpreters that the
package was not built for: `python3.10 tests/test_whose.py`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent.parent / "gpuring" / "service" / "whose.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("whose", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


whose = load()


class View:
    pass


class Slot:
    def __init__(self) -> None:
        self._meta = View()
        self._whole = View()
        self._views = {"whole": self._whole, "part": View()}


class Keeps:
    """As a server keeps its calls, a client its own, and an endpoint its slots."""

    def __init__(self) -> None:
        self.calls = {View()}
        self.live = {1: View()}
        self.slots = [Slot()]

    def of_calls(self) -> int:
        for call in tuple(self.calls):
            return int(whose.references(call))
        return -1

    def of_live(self) -> int:
        listed = list(self.live.values())
        for call in listed:
            return int(whose.references(call))
        return -1

    def lost(self, known: int = 0) -> bool:
        for index in range(1):
            slot = self.slots[index]
            if whose.nobody_has(slot, known):
                return True
        return False


def test_references_are_those_beside_the_variable_that_asks():
    thing = View()
    assert whose.references(thing) == 0
    kept = [thing]
    assert whose.references(thing) == 1
    keeps = Keeps()
    assert (keeps.of_calls(), keeps.of_live()) == (2, 2)
    kept = [*keeps.calls, *keeps.live.values()]
    assert (keeps.of_calls(), keeps.of_live()) == (3, 3)
    del kept


def test_who_has_a_slot_or_a_part_of_it_is_seen():
    keeps = Keeps()
    assert keeps.lost()
    for part in (
        lambda slot: slot,
        lambda slot: slot._meta,
        lambda slot: slot._whole,
        lambda slot: slot._views["part"],
    ):
        kept = part(keeps.slots[0])
        assert not keeps.lost()
        del kept
        assert keeps.lost()
    kept = keeps.slots[0]
    assert keeps.lost(known=1)
    del kept


if __name__ == "__main__":
    test_references_are_those_beside_the_variable_that_asks()
    test_who_has_a_slot_or_a_part_of_it_is_seen()
