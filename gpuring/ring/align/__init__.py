"""Frames of several streams that belong together: what align is asked for.

aligned.py has the iterator that it returns, and lookahead.py what that has acquired ahead.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable
from numbers import Integral
from typing import Any, Literal, overload

from gpuring import arguments
from gpuring.arguments import integer
from gpuring.ring.align.aligned import Aligned, Limits
from gpuring.ring.align.lookahead import Lookahead
from gpuring.ring.consumer import Consumer
from gpuring.ring.read_slot import ReadSlot

__all__ = ["Aligned", "align"]


@overload
def align(
    consumers: Iterable[Consumer],
    by: str | None = ...,
    within: float = ...,
    *,
    partial: Literal[False] = ...,
    depth: int | None = ...,
    max_wait_s: float | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
) -> Aligned[ReadSlot]: ...


@overload
def align(
    consumers: Iterable[Consumer],
    by: str | None = ...,
    within: float = ...,
    *,
    partial: bool,
    depth: int | None = ...,
    max_wait_s: float | None = ...,
    timeout: float | None = ...,
    stream: Any = ...,
) -> Aligned[ReadSlot | None]: ...


def align(
    consumers: Iterable[Consumer],
    by: str | None = None,
    within: float = 0,
    *,
    partial: bool = False,
    depth: int | None = None,
    max_wait_s: float | None = None,
    timeout: float | None = None,
    stream: Any = None,
) -> Aligned[Any]:
    """Joins the frames of several consumers that belong together.  Returns an iterator of tuples,
    which have one slot for each consumer.

        for left, right in gpuring.align([lefts, rights], by="pts", within=2): ...

        pts on the left       0    40    80   120
        pts on the right      1    41         121   160
        tuples               0,1  40,41      120,121           80 and 160 are unmatched
        with partial=True    0,1  40,41  80,-  120,121  -,160  "-" is None

    A stream that stalls, is slow or dies holds up no other one.  Frames that have waited long
    enough for it go on without it.

    * `by`: the metadata field that is compared.  It is a number that rises from frame to frame of a
      stream.  None takes the newest frame of each stream and passes over older ones.
    * `within`: by how much the values in a tuple may differ, in the units of the field.  0 means
      that they are equal.  If it is less than half the interval between a stream's frames, each
      frame has one candidate at most.  If it is more, the oldest that fits is taken.
    * `partial`: False releases a frame without partners and counts it in `Aligned.unmatched`.  True
      hands it out, with None for the missing ones, so that with `by` every frame is handed out.
      A frame that comes after its partners were handed out comes by itself, out of turn.
    * `depth`: a frame waits for missing partners until this many frames of one stream have come, 2
      or more.  Never more are held of a stream.  None is half of the smallest ring, and at least 2.
      The newest frames (no `by`) without `partial` have no such limit, because newer ones take
      their places.
    * `max_wait_s`: a frame also waits no longer than so many seconds after it was published.  None
      sets no such limit.
    * `timeout`: how long one step may take, in seconds.  0 does not wait, None waits for ever.
      When the time is up the step raises RingTimeout.  Iterate again after that.
    * `stream`: the stream of each acquire.  Without it frames are ordered on the stream that is
      the current one when they are handed out.

    The slots of a tuple are released when the iterator moves on.  Only one thread may use it and
    its consumers.  `Aligned` says what ends the iteration, and what happens to what it holds.
    Raises TypeError and ValueError for wrong arguments, such as a field that a ring does not have,
    or a ring of one slot.
    """
    if isinstance(consumers, Consumer) or not isinstance(consumers, Iterable):
        raise TypeError(
            f"align takes several consumers: align([left, right]), not {reprlib.repr(consumers)}"
        )
    several = list(consumers)
    if not several:
        raise ValueError("align needs a consumer")
    for each in several:
        if not isinstance(each, Consumer):
            raise TypeError(f"align takes consumers, not {type(each).__name__}")
        if by is not None:
            _check_field(each, by)
        if stream is not None:
            each._handle(stream)
    if len(set(several)) < len(several):
        raise ValueError("align was given the same consumer twice")
    if within and by is None:
        raise ValueError(
            "within= bounds the difference of a metadata field: name that field with by="
        )
    bound = arguments.number(within, "within")
    if not bound >= 0:
        raise ValueError(f"within must be >= 0, in the units of the field {by!r}, not {within!r}")
    # An integer stays exact, unless no float is as large: it is also added to floats.
    within = int(within) if isinstance(within, Integral) and bound < math.inf else bound
    partial = arguments.flag(partial, "partial")
    max_wait_s = arguments.seconds(max_wait_s, "max_wait_s")
    timeout = arguments.seconds(timeout, "timeout")
    smallest = min(each.ring.slots for each in several)
    depth = max(2, smallest // 2) if depth is None else integer(depth, "depth")
    if not 2 <= depth <= smallest:
        raise ValueError(
            f"depth must be 2 … {smallest}, as many as the smallest ring has slots, not {depth}"
        )
    limits = Limits(by, within, partial, depth, max_wait_s, timeout)
    return Aligned([Lookahead(each, by, stream) for each in several], limits, stream)


def _check_field(consumer: Consumer, by: str) -> None:
    if not isinstance(by, str):
        raise TypeError(f"by must be the name of a metadata field or None, not {reprlib.repr(by)}")
    meta, ring = consumer.ring.spec.meta, consumer.ring.name
    if meta is None or by not in (meta.names or ()):
        names = ", ".join((meta and meta.names) or ()) or "none"
        raise ValueError(f"ring {ring!r} has no metadata field {by!r}; its fields: {names}")
    if meta[by].kind not in "iuf" or meta[by].shape:
        raise TypeError(
            f'ring {ring!r}: frames are aligned by a number, such as an "i8" of nanoseconds; '
            f"{by!r} is {meta[by]}"
        )
