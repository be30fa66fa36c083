"""What a consumer has acquired ahead of its user: frames that wait for those of other streams.

Every frame that was acquired is in `held` until it is released, also while the user has it.  So an
interrupt between any two steps loses no frame, because the next step finds it there.
"""

from __future__ import annotations

import contextlib
import math
from bisect import insort
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuring.errors import EndOfStream, FrameTorn, PeerLost, RingTimeout
from gpuring.ring import caller, following
from gpuring.ring.consumer import Consumer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuring.ring.read_slot import ReadSlot


class Frame(NamedTuple):
    """A frame that was acquired, and the value by which it is compared."""

    key: float
    seq: int
    time_ns: int
    slot: ReadSlot
    stream: Any
    """The current stream when it was acquired.  This keeps it alive, the slot has only its
    handle."""


class Lookahead:
    """One consumer of several, and its frames that are not released yet."""

    def __init__(self, consumer: Consumer, by: str | None, cuda_stream: Any) -> None:
        self.consumer, self._by, self._cuda_stream = consumer, by, cuda_stream
        self.held: list[Frame] = []
        """Frames in order of their keys.  Those that the user has stay here."""
        self.passed = 0
        """How many frames gave way to newer ones since the last tuple (by=None)."""
        self.last: float | None = None
        """The key of the frame that came last."""
        self.end: EndOfStream | PeerLost | None = None
        self.unmatched = 0
        self.unmatched_before = 0
        """`unmatched` when the step of the user began."""
        self._taken: ReadSlot | None = None
        """A slot that was acquired and is not in `held` yet.  No local variable has it, because a
        traceback keeps local variables, and somebody would then still have the slot."""
        self._current_stream: Any = None
        self._warned = False

    @property
    def head(self) -> Frame | None:
        return self.held[0] if self.held else None

    @property
    def wanted(self) -> bool:
        """Whether to look for a frame of it before anything is decided."""
        return self.is_live and (not self.held or self._by is None)

    @property
    def is_live(self) -> bool:
        """Whether to wait for a frame of it.  At an end that its consumer waits out it is asked
        again when what is held was handed out: in another ring nobody could give that back."""
        return self.end is None and not (self.held and following.rests(self.consumer))

    def may_bring(self, limit: float) -> bool:
        """Whether its next frame may have a key up to `limit`."""
        return self.end is None and not self.held and (self.last is None or self.last <= limit)

    def take(self) -> bool:
        """Takes what is ready, and returns whether anything came.  There must be room for a
        frame."""
        came = False
        for _ in range(1 if self._by is not None else self.consumer.ring.slots):
            if not self.is_live:
                break
            try:
                self._take_one()
            except RingTimeout:  # another member was faster, or the GPU is not done
                return came
            except (EndOfStream, PeerLost) as end:
                self.end = end
                return True
            came = True
        return came

    def _take_one(self) -> None:
        newest = self._by is None and not self.consumer.lossless
        verb = self.consumer.latest if newest else self.consumer.acquire
        device = self.consumer.ring._device
        if device is not None and self._cuda_stream is None:
            self._current_stream = device.get_current_stream()
        self._taken = verb(0, stream=self._cuda_stream)
        self._hold()

    def _hold(self) -> None:
        slot = self._taken
        assert slot is not None
        frame = Frame(self._key(slot), slot.seq, slot.time_ns, slot, self._current_stream)
        slot._seen = False  # by the user
        if self._by is None:
            while self.held:
                self.drop(self.held[0])
                self.passed += 1
        insort(self.held, frame, key=itemgetter(0, 1))
        self._taken = None

    def _key(self, slot: ReadSlot) -> float:
        if self._by is None:
            return 0
        key: float = slot.meta[self._by].item()
        if math.isnan(key):
            return -math.inf  # it comes first, and fits no other
        before, self.last = self.last, key
        if before is not None and key < before and not (slot.redelivered or self._warned):
            self._warned = True
            caller.warn(
                f"ring {self.consumer.ring.name!r}: {self._by!r} went back from {before} to {key}. "
                "Frames are aligned by a value that rises in each stream; those from here on match "
                "only frames of other streams that have gone back, too",
                RuntimeWarning,
            )
        return key

    def begin_step(self) -> None:
        """Called when a step of the user begins: puts things in order after the last one."""
        self.tidy()
        self.unmatched_before = self.unmatched

    def passed_over(self, before: int) -> str:
        """What was released of it since `unmatched` was `before`, in words, or nothing."""
        count = self.unmatched - before
        if not count:
            return ""
        frames = "frame" if count == 1 else "frames"
        newest = "" if self.last is None else f" (the newest {self._by!r}: {self.last})"
        return f"{count} {frames} of ring {self.consumer.ring.name!r} matched no others{newest}"

    def why_none(self) -> str:
        """Why no frame comes, in words.  One that comes after all is kept for the next step."""
        try:
            if self.end is None:
                self._take_one()
                return "the next one has just come"
        except RingTimeout as error:
            return str(error).partition(" at once: ")[2]
        except (EndOfStream, PeerLost) as end:
            self.end = end
        return "its stream has ended"

    def drop(self, frame: Frame) -> None:
        """Releases a frame that nobody has seen."""
        if frame.slot._open:
            with contextlib.suppress(FrameTorn):
                frame.slot.release()
        self.held.remove(frame)
        self.unmatched += 1

    def let_go(self, frame: Frame, kind: type[BaseException] | None = None) -> None:
        """Releases a frame that the user had.  If it was torn, the next acquire or close says so.
        If `kind` has left the user's loop, the frame may come again instead."""
        if frame in self.held:
            self.held.remove(frame)
        if kind is not None:
            self.give_back()  # first those behind it: step by step
        try:
            if frame.slot._open and (kind is None or not frame.slot._goes_back(kind)):
                frame.slot.release()
        except FrameTorn as torn:
            self.consumer._untold += torn.seqs
        self.passed = 0

    def tidy(self) -> None:
        """Puts `held` in order after an interrupt between two steps, or after the consumer's
        close."""
        for frame in [each for each in self.held if not each.slot._open]:
            self.drop(frame)
        slot = self._taken
        if slot is not None and slot._open and all(each.slot is not slot for each in self.held):
            self._hold()
        self._taken = None

    def give_back(self) -> None:
        """Gives back what the user has never had.  The consumer acquires it again."""
        slots = [each.slot for each in self.held]
        if self._taken is not None and self._taken not in slots:
            slots.append(self._taken)
        for slot in sorted(slots, key=lambda slot: slot._seq, reverse=True):  # step by step
            if slot._open:
                slot._owner._put_back(slot.index)
        self.held, self.last, self.passed, self._taken = [], None, 0, None


def passed_over(streams: Sequence[Lookahead], before: Sequence[int]) -> list[str]:
    """What was released of each stream since its `unmatched` was `before`, in words."""
    told = [each.passed_over(count) for each, count in zip(streams, before, strict=True)]
    told += [
        f"none came of ring {each.consumer.ring.name!r}: {each.why_none()}"
        for each, passed in zip(streams, told, strict=True)
        if not (each.held or passed)
    ]
    return [each for each in told if each]
