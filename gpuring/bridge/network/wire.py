"""What the two sides of a bridge say to each other.  wire_bytes.py has the bytes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gpuring.native import MAX_META_NBYTES, MAX_SPEC_NBYTES

VERSION = 2
"""Both sides must speak the same.  HELLO and REFUSE have kept their form since version 1."""

MAX_PART = 1 << 20
"""The most bytes of a frame in one message.  What is said next never waits for more than that."""

MAX_OFFER = 1 << 20
"""The most bytes of an offer (engine.Receiver.open)."""

MAX_ENCRYPTED = max(MAX_PART, MAX_OFFER) + 64
"""The most bytes that a part of a message has in the network.  CURVE adds 33 to it."""

MAX_HEAD = 2 * max(MAX_SPEC_NBYTES, MAX_META_NBYTES) + (1 << 16)
"""The most bytes of a head.  In JSON a description of slots is up to twice as long."""

POLICIES = ("lossless", "lossy", "latest")


class WireError(ValueError):
    """A message that no bridge sends."""


class OtherVersion(WireError):
    """A HELLO of another version."""

    def __init__(self, session: int, version: int) -> None:
        super().__init__(f"the other side speaks version {version}, and this one {VERSION}")
        self.session = session


@dataclass(frozen=True)
class Hello:
    """far → near: the first message of a session."""

    kind: ClassVar = 1
    ring: str
    """The near ring's name."""
    importer: str
    """Who asks: "host/ring", the same for every session of this importer."""
    run: str
    """16 hex digits: which start of that importer it is.  A restarted worker keeps them."""
    policy: str
    epoch: str
    """The epoch of the near ring that the far ring has frames of, in hex.  Empty: none yet."""
    seq: int
    """The watermark: the far ring has everything up to this sequence of that epoch."""
    timeout_ms: int = 3000
    """After how long a silence the far side ends the session.  The near side takes half as long
    again.  So it never gives a frame up while the far side might still take it for good."""


@dataclass(frozen=True)
class Refuse:
    """near → far: the answer to a Hello that cannot be served."""

    kind: ClassVar = 2
    reason: str
    again: bool
    """Whether the same Hello may be served later."""


@dataclass(frozen=True)
class Welcome:
    """near → far: the answer to a Hello."""

    kind: ClassVar = 3
    host: str
    epoch: str
    seq: int
    """The watermark of a far ring that is made for this epoch: the near side sends nothing up to
    this sequence."""
    spec: str
    """The description of the near ring's slots, as it stands in the header."""
    engines: Mapping[str, Mapping[str, Any]]
    """The facts of each engine that the near side can use."""


@dataclass(frozen=True)
class Open:
    """far → near: the far ring is there, and its end of the engine is open."""

    kind: ClassVar = 4
    engine: str
    slots: int
    """How many slots the far ring has."""
    offer: bytes = b""


@dataclass(slots=True)  # frozen ones take longer to make, and there are some for each frame
class Flow:
    """far → near: what was published, and the slots that were claimed since the last Flow."""

    kind: ClassVar = 5
    acked: int
    """Everything up to this near sequence was published.  0: nothing yet."""
    credits: tuple[int, ...]
    """Far sequences, rising."""


@dataclass(slots=True)
class Data:
    """near → far: a part of a frame, for engines that send over the channel.  The last one may come
    with its Frame instead."""

    kind: ClassVar = 6
    to_seq: int
    begin: int
    part: Any


@dataclass(slots=True)
class Frame:
    """near → far: a frame is in its slot."""

    kind: ClassVar = 7
    seq: int
    to_seq: int
    nbytes: int
    time_ns: int
    """When it was first published, in nanoseconds of the wall clock there."""
    lost: int
    """How many sequences were lost between the frame before and this one."""
    shape: tuple[int, ...]
    """Empty for a frame of the slot's own shape."""
    meta: bytes = b""
    starved: bool = False
    """Whether it was there and had to wait for a credit."""
    part: Any = b""
    """The last bytes of the frame, if they come over the channel and have not come before."""


@dataclass(frozen=True)
class End:
    """near → far: everything was sent, and the near ring's producers are gone.

    It voids all credits, also those that are on their way, because the far side leaves its ring as
    a producer.  The near side uses none until the far side has answered the next Begin."""

    kind: ClassVar = 8
    died: bool
    """Whether the last one was killed."""


@dataclass(frozen=True)
class Begin:
    """near → far: the stream goes on.  far → near, after an End of this session: the far side is a
    producer again, and the credits from now on are good."""

    kind: ClassVar = 9


@dataclass(frozen=True)
class Ping:
    """Both ways: who sends it lives."""

    kind: ClassVar = 10
    blocked: str = ""
    """far → near: who keeps the far ring from taking more, in words.  near → far, before the
    Welcome: why the near ring cannot be read yet.  Empty: nobody, nothing."""
    by: str = ""
    """far → near: the subscription that does.  Empty: nobody, or something else."""


@dataclass(frozen=True)
class Bye:
    """Both ways: the session is over."""

    kind: ClassVar = 11
    reason: str
    again: bool
    """Whether another session may begin at once."""


@dataclass(frozen=True)
class AskTime:
    """far → near: what time is it there?"""

    kind: ClassVar = 12
    asked_ns: int
    """CLOCK_MONOTONIC of the far host, when it asks."""


@dataclass(frozen=True)
class Time:
    """near → far: the answer, at once."""

    kind: ClassVar = 13
    asked_ns: int
    """The `asked_ns` of the question."""
    time_ns: int
    """CLOCK_MONOTONIC of the near host."""


Message = (
    Hello
    | Refuse
    | Welcome
    | Open
    | Flow
    | Data
    | Frame
    | End
    | Begin
    | Ping
    | Bye
    | AskTime
    | Time
)
