"""GPURING_DEBUG=1: finds uses of a view after its slot was given back, and writes beyond a slot.

A view of a frame that was given back shows whatever is there a lap later.  Nothing can forbid its
use, so debug mode makes it visible in three ways:

* Arrays know until when they are valid, and report the line that uses them afterwards (lease.py).
* A torch tensor or a JAX array does not.  It is reported if it still exists when its slot is used
  again by the same peer.
* A claimed slot is filled with POISON, so a late reader does not see a plausible frame.

In debug mode every endpoint has a Watcher.

The canary behind every slot is checked when the slot changes hands.  On a GPU all this waits for
streams, so nothing can be measured in debug mode.  Other processes do not notice it, except that
the slots are further apart in a ring that a process in debug mode created.
"""

from __future__ import annotations

import functools
import gc
import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuring.arrays.streams import current
from gpuring.errors import DeviceError, OverrunWarning, StaleViewWarning
from gpuring.memory import Memory, gpus
from gpuring.ring import caller, slot_bytes
from gpuring.ring.batch import still_open
from gpuring.ring.lease import Lease, watched
from gpuring.slot_layout import ARRAY, SLOT_ALIGNMENT, Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuring.ring.slot import Slot
else:
    Slot = object  # it stands before a kind of Slot, which makes the object

ON = os.environ.get("GPURING_DEBUG", "0") not in ("", "0")
"""Whether the process is in debug mode.  It is read once, at import."""

META = ""
"""The metadata among the views of a slot.  No field has this name."""

POISON = 0xA5
CANARY = 0xC7


def canary_nbytes() -> int:
    """How many bytes a ring that is created now has behind each slot."""
    return SLOT_ALIGNMENT if ON else 0


def plant(memory: Memory, spec: Spec, slots: int) -> None:
    """Fills the canaries of a new ring."""
    if not spec.canary_nbytes:
        return
    for index in range(slots):
        slot_bytes.fill(slot_bytes.canary(memory, spec, index), CANARY, 0)
    if memory.mapped:
        assert memory.device is not None
        gpus.gpu(memory.device).finish()  # others may look at once


# ---- slots ---------------------------------------------------------------------------------------


class WatchedSlot(Slot):
    """What a slot does in addition in debug mode.  It is a base class that comes before its own
    kind."""

    _verbs: tuple[str, str]
    """Words for how it was taken and how it is ended: claimed and published, acquired and
    released."""
    _undo: Callable[[], None]
    """Gives it back as its kind does, without looking for mistakes."""
    _lease: Lease | None = None
    _spec: Spec
    _frame: Any
    _canary: Any
    _whole: Any

    def _begin_watch(self, spec: Spec) -> None:
        """Called when the slot is prepared."""
        self._spec = spec
        self._frame = slot_bytes.frame(self._memory, spec, self.index)
        if spec.canary_nbytes:
            self._canary = slot_bytes.canary(self._memory, spec, self.index)
        self._whole = None  # so that every access comes to _over()

    def _succeed(self, before: WatchedSlot) -> None:
        self._lease, before._lease = before._lease, None  # so that a kept view is reported

    def _begin_lease(self, call: int) -> None:
        before = weakref.ref(self._lease) if self._lease is not None else None
        self._lease, self._views = None, {}
        if before is not None and before() is not None:
            gc.collect()  # it may be garbage that was not collected yet
            kept = before()
            # What the call before this one gave is often still in the caller's variable.
            if kept is not None and call - kept.call > 1:
                caller.warn(
                    f"{kept}, was kept: a view of it still exists now that its slot is used again "
                    f"for sequence {self._seq}. Copy what you keep",
                    StaleViewWarning,
                )
        what = f"ring {self._ring!r}: sequence {self._seq} (slot {self.index})"
        self._lease = Lease(what, self._verbs, call)
        self._check_canary(f"before it was {self._verbs[0]} here")
        if self._verbs[0] == "claimed":
            slot_bytes.fill(self._frame, POISON, self._stream)

    def _end_lease(self) -> None:
        """Called when the slot is about to be given back."""
        self._check_open()
        try:
            self._check_canary(f"between here and where it was {self._verbs[0]}")
        except Warning:  # warnings can be turned into errors
            self._undo()
            raise
        self._forget_lease()

    def _forget_lease(self) -> None:
        """From now on views of the slot are reported when they are used."""
        self._views = {}
        if self._lease is not None:
            self._lease.open = False

    def _over(self, name: str) -> Any:
        self._check_open()
        return self._view(name, self._shape if name == ARRAY else None)

    def _view(self, name: str, shape: tuple[int, ...] | None) -> Any:
        if name not in self._views:
            assert self._lease is not None
            self._lease.open = True  # a verb that was refused has ended it for nothing
            field = self._fields[name]
            array = self._array_over(field, shape or field.shape)
            self._views[name] = watched(array, self._lease)
        return self._views[name]

    @property
    def meta(self) -> Any:
        plain = super().meta
        if META not in self._views:
            assert self._lease is not None
            self._lease.open = True
            self._views[META] = watched(plain, self._lease)
        return self._views[META]

    @meta.setter
    def meta(self, value: Any) -> None:
        unwatched: Any = super(WatchedSlot, type(self)).meta
        unwatched.__set__(self, value)

    def _check_canary(self, when: str) -> None:
        if not self._spec.canary_nbytes:
            return
        if self._device is not None:
            # Behind all work on the slot, on the streams that publish and release wait for.
            self._check_stream(self._stream)
            self._import_on(current(self._device.ordinal))
            self._import_on(self._stream)
        now = slot_bytes.read(self._canary, self._stream)
        written = np.flatnonzero(now != CANARY)
        if written.size:
            slot_bytes.fill(self._canary, CANARY, self._stream)
            caller.warn(
                f"{self._lease}: somebody wrote up to {written[-1] + 1} bytes beyond the slot's "
                f"end, {when}; or up to {now.size - written[0]} bytes before the next slot",
                OverrunWarning,
            )


def _giving_back(verb: Callable[[Any], None]) -> Any:
    @functools.wraps(verb)
    def given_back(self: WatchedSlot) -> None:
        self._end_lease()
        verb(self)

    return given_back


def _end_write(self: Any, kind: Any = None, *_: object) -> None:
    if self._open:
        (self.publish if kind is None else self.abandon)()


def _end_read(self: Any, kind: Any = None, *_: object) -> None:
    if self._open and (kind is None or not self._goes_back(kind)):
        self.release()


def _going_back(goes_back: Callable[[Any, Any], bool]) -> Any:
    @functools.wraps(goes_back)
    def went_back(self: WatchedSlot, kind: Any) -> bool:
        back = goes_back(self, kind)
        if back:
            self._forget_lease()
        return back

    return went_back


def _end_batch(self: Any, kind: Any = None, *_: object) -> None:
    if hasattr(self, "release"):
        for slot in [] if kind is None else reversed(still_open(self)):
            slot._goes_back(kind)
        self.release()
    else:
        (self.publish if kind is None else self.abandon)()


@functools.cache
def watched_slots(kind: Any) -> Any:
    """The same kind of slot, watched."""
    members: dict[str, Any] = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    if hasattr(kind, "release"):
        members |= {"_verbs": ("acquired", "released"), "_undo": kind.release}
        members |= {"release": _giving_back(kind.release), "__exit__": _end_read}
        members["_goes_back"] = _going_back(kind._goes_back)
    else:
        members |= {"_verbs": ("claimed", "published"), "_undo": kind.abandon}
        members |= {verb: _giving_back(getattr(kind, verb)) for verb in ("publish", "abandon")}
        members["__exit__"] = _end_write
    return type(kind.__name__, (WatchedSlot, kind), members)


@functools.cache
def watched_batches(kind: Any) -> Any:
    """The same kind of batch, watched."""
    ends = ("release",) if hasattr(kind, "release") else ("publish", "abandon")
    undo = getattr(kind, ends[-1])

    def giving_back(verb: str) -> Any:
        @functools.wraps(getattr(kind, verb))
        def given_back(self: Any) -> None:
            try:
                for slot in still_open(self):
                    slot._end_lease()
            except Warning:  # warnings can be turned into errors
                undo(self)
                raise
            getattr(kind, verb)(self)

        return given_back

    members = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__exit__": _end_batch}
    return type(kind.__name__, (kind,), members | {verb: giving_back(verb) for verb in ends})


# ---- producers and consumers ---------------------------------------------------------------------


class Watcher:
    """Watches the slots of one endpoint."""

    def __init__(self, put_back: Callable[[int], None]) -> None:
        """`put_back(index)`: undoes a claim or a hold that the user has never seen."""
        self._put_back = put_back
        self._calls = 0

    def verb(self, verb: Any) -> Any:
        """The same verb of an endpoint, whose slots are watched from when it hands them out."""

        @functools.wraps(verb)
        def watched(endpoint: Any, *args: Any, **options: Any) -> Any:
            slots = verb(endpoint, *args, **options)
            if slots is not None:  # of try_claim
                self.took(slots if isinstance(slots, tuple) else (slots,))
            return slots

        return watched

    def took(self, slots: Sequence[Any]) -> None:
        """Called when slots were claimed or acquired, and the user is about to get them."""
        self._calls += 1
        try:  # a verb asks only if it enqueues something, and filling the slot does enqueue
            slots[0]._check_stream(slots[0]._stream)
        except DeviceError:
            for slot in reversed(slots):
                slot._open = False
                self._put_back(slot.index)
            raise
        try:
            for slot in slots:
                slot._begin_lease(self._calls)
        except BaseException as error:  # warnings can be turned into errors
            for slot in reversed(slots):
                if isinstance(error, Exception) or hasattr(slot, "publish"):
                    slot._end()  # a claimed slot was filled, so its end waits for that
                else:  # after a Ctrl-C nobody has seen the frame, so it comes again
                    slot._open = False
                    self._put_back(slot.index)
            raise
