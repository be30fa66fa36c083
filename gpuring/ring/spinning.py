"""How long a wait looks before it sleeps: `spin=` and GPURING_SPIN, in the units of the core."""

from __future__ import annotations

import functools

from gpuring import arguments, native

ADAPTIVE, FOR_EVER = -1, 2**63 - 1


def spin_ns(spin: float | None) -> int:
    """`spin` in nanoseconds.  None is what GPURING_SPIN says, or ADAPTIVE if it says nothing.

    Raises TypeError, and ValueError for a value of the environment, too.
    """
    if spin is None:
        return _of_the_process()
    checked = arguments.seconds(spin, "spin")
    return FOR_EVER if checked > 9e9 else int(checked * 1e9)


@functools.cache
def _of_the_process() -> int:
    return native.spin_ns()
