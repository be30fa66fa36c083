"""The errors.  Wrong arguments raise TypeError and ValueError, and everything else is a RingError.

A message names the ring, the numbers, the culprit and the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


class RingError(Exception):
    """Base of everything that can go wrong with a ring."""


class RingNotFound(RingError):
    """There is no ring of that name on this host, or none yet."""


class RingExists(RingError):
    """create() found a ring of that name."""


class RingIncompatible(RingError):
    """The segment of that name is damaged, foreign, or of another version of gpuring."""


class RingTimeout(RingError, TimeoutError):
    """The time was up.  The call that raised it has claimed nothing and holds nothing."""


class RingFull(RingTimeout):
    """No slot could be claimed in time.  From `claim`: a reader still needs the slot, and the
    message says which one.  From `Client.request`: there is no room for one more call."""


class TooManyPeers(RingError):
    """The peer table or the subscription table is full of living peers."""


class RingClosed(RingError):
    """This handle, producer or consumer was closed.  Or the whole ring was closed: by its creator,
    or because another ring took its name."""


class EndOfStream(RingError):
    """Everything was read, and the last producer left cleanly or the ring was closed."""


class PeerLost(RingError):
    """The other side died, or this peer was taken for dead.

    * `acquire`: everything was read, and the last producer was killed.
    * `attach`: nobody who lives can hand on the memory of a GPU ring, or within the timeout there
      was only a ring of the dead.
    * Services: there is no engine, the engine died with the call, or the service was closed or
      replaced.
    * Any verb: this peer itself was taken for dead, and its claims were cleared.
    """


class ProducerDied(PeerLost):
    """A producer of the stream died, and the stream goes on.  `Ring.consumer(deaths=True)` asks for
    this.  The message has its number, its label or else the name of its program, and its pid.  Of
    several that died since the last call it names all that are among the ring's last eight deaths.
    """


class FrameTorn(RingError):
    """A frame's producer died before its GPU work on it was finished.  `seqs` names the frames."""

    def __init__(self, message: str, seqs: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.seqs: tuple[int, ...] = seqs
        """The sequences of the torn frames."""


class CallFailed(RingError):
    """The engine of a service failed the call.  The message is the engine's."""


class CallCancelled(RingError):
    """From `Call.part`: nobody waits for the answer any more.  The client has given the call up, is
    dead, or has left."""


class DeviceError(RingError):
    """The GPU, its driver, or CuPy and torch are missing, unsuitable, or reported an error."""


class StaleViewWarning(RuntimeWarning):
    """A view of a frame was used, or kept, after its slot was given back (GPURING_DEBUG=1)."""


class OverrunWarning(RuntimeWarning):
    """Somebody wrote beyond the end of a slot (GPURING_DEBUG=1)."""


def raise_first(errors: Sequence[BaseException]) -> NoReturn:
    """Raises the first of several errors.  Its notes name the others."""
    first, *others = errors
    if others:
        notes = [f"And then: {type(other).__name__}: {other}" for other in others]
        # What add_note() does, from Python 3.11 on.
        first.__notes__ = [*getattr(first, "__notes__", ()), *notes]  # type: ignore[attr-defined]
    raise first
