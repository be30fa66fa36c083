"""Objects of which there cannot be a second one: a claim, a hold or a membership."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class Unique:
    """Refuses `copy` and `pickle`: the copy would give back what belongs to another one by then."""

    __slots__ = ()

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: it stands for one claim, hold "
            "or membership of this process. Copy the arrays you want to keep; give another process "
            "the Ring, or the name of the ring or service, and let it join by itself"
        )
