"""What a handle says of its ring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuring.native.signals import Dropped
from gpuring.slot_layout import ARRAY

if TYPE_CHECKING:
    import numpy as np

    from gpuring.native import Header
    from gpuring.slot_layout import Field, Spec


class Described(Dropped):
    """What is the same for a ring's whole life, and whether the handle is closed."""

    _name: str
    _header: Header
    _spec: Spec
    _closed: bool

    @property
    def name(self) -> str:
        """The name by which others attach."""
        return self._name

    @property
    def slots(self) -> int:
        """How many slots the ring has.  Sequence s is in slot s % slots."""
        return self._header.slots

    @property
    def spec(self) -> Spec:
        """What a slot holds: its fields with their shapes and dtypes, and the metadata's dtype."""
        return self._spec

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a frame.  Raises TypeError if a slot has several fields; see `fields`."""
        return self._only_field().shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a frame.  Raises TypeError if a slot has several fields; see `fields`."""
        return self._only_field().dtype

    @property
    def fields(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """The (shape, dtype) of each field by its name, as `create(fields=)` takes them.  A ring
        that was created with shape= and dtype= has one field, "array"."""
        return {field.name: (field.shape, field.dtype) for field in self._spec.fields}

    def _only_field(self) -> Field:
        first = self._spec.fields[0]
        if first.name != ARRAY:
            names = ", ".join(map(repr, self.fields))
            raise TypeError(f"ring {self._name!r} has the fields {names}: see ring.fields")
        return first

    @property
    def memory(self) -> str:
        """Where the slots are: "host", "pinned", or on a GPU as "ipc", "vmm" or "pool"
        (`create(memory=)`).  With memory="auto" this is what was chosen."""
        return self._header.memory

    @property
    def sync(self) -> str:
        """How streams wait for each other: "timeline", "event", or "host" on a host ring."""
        return self._header.sync

    @property
    def gate(self) -> str:
        """Where peers wait for others' GPU work if they do not say: "stream" or "host"."""
        return self._header.gate

    @property
    def closed(self) -> bool:
        """Whether this handle was closed."""
        return self._closed

    def __repr__(self) -> str:
        where = self.memory if self.memory == "host" else f"{self.memory}, {self.sync}"
        state = "closed" if self._closed else f"{self.slots} × {self._spec}, {where}"
        return f"<Ring {self._name!r}: {state}>"
