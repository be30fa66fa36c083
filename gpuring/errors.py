"""The errors.  Wrong arguments stay TypeError and ValueError; everything else is a RingError.

A message names the ring, the numbers, the culprit and the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


class RingError(Exception):
    """Base of everything that can go wrong with a ring."""


class RingNotFound(RingError):
    """No ring of that name on this host (yet)."""


class RingExists(RingError):
    """create() found a ring of that name."""


class RingIncompatible(RingError):
    """The segment of that name is damaged, foreign, or of another version of gpuring."""


class RingTimeout(RingError, TimeoutError):
    """The time was up.  Nothing is claimed or held by the call that raised it."""


class RingFull(RingTimeout):
    """claim(): a reader still needs the slot; the message says which.  From Client.request(): there
    is no room for one more call."""


class TooManyPeers(RingError):
    """The peer table or the subscription table is full of living peers."""


class RingClosed(RingError):
    """It was closed: this handle by you, or the ring as a whole by its creator."""


class EndOfStream(RingError):
    """Everything was read, and the last producer left in order or the ring was closed."""


class PeerLost(RingError):
    """The other side died: everything was read and the last producer was killed; attach() came
    after the death of a GPU ring's creator; a service has no engine, or its engine died with the
    call.  Or this peer was taken for dead itself, and its claims were cleared."""


class FrameTorn(RingError):
    """A frame's producer died before its GPU work on it was finished.  `seqs` names the frames."""

    def __init__(self, message: str, seqs: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.seqs = seqs
        """The sequences of the torn frames."""


class CallFailed(RingError):
    """A service's engine failed the call; the message says what it said."""


class DeviceError(RingError):
    """The GPU, its driver or CuPy is missing, unsuitable, or reported an error."""


class StaleViewWarning(RuntimeWarning):
    """With GPURING_DEBUG=1: a view of a frame was used, or kept, after its slot was given back."""


class OverrunWarning(RuntimeWarning):
    """With GPURING_DEBUG=1: somebody wrote beyond the end of a slot."""


def raise_first(errors: Sequence[BaseException]) -> NoReturn:
    """Raises the first of several errors; the others stand in its notes."""
    first, *others = errors
    if others:
        notes = [f"And then: {type(other).__name__}: {other}" for other in others]
        # What add_note() does, from Python 3.11 on.
        first.__notes__ = [*getattr(first, "__notes__", ()), *notes]  # type: ignore[attr-defined]
    raise first
