"""What is going on in the rings and threads at one moment of a time line."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuring.tracing.tracks import Args, Slice, Track
from gpuring.tracing.who import Known, Who

BEFORE = "began before the trace by"
"""What an argument of a wait is called that is older than the trace."""
Key = tuple[int, int]
"""A peer of a ring: its number and the low half of its id."""


@dataclass
class PeerState:
    key: Key
    pid: int
    open: dict[int, Slice] = field(default_factory=dict)
    """By sequence: what it writes or reads."""
    awaits: Slice | None = None
    """What it waits for in an event loop."""
    awaits_since_ns: int = 0
    """When that wait, or the last one, began."""
    turn: int = 0
    last_ns: int = 0


@dataclass
class RingState:
    index: int
    """Its place in the list of traced rings."""
    name: str
    title: str
    """Its name, apart from that of an earlier ring."""
    slots: int
    known: Known
    track: Track
    begun_ns: int
    """When its trace began."""
    is_far: bool
    """Whether a bridge fills it."""
    peers: dict[Key, PeerState] = field(default_factory=dict)
    written: dict[int, Slice] = field(default_factory=dict)
    released: dict[int, Slice] = field(default_factory=dict)
    """By sequence: who wrote it, and who was the last to release it."""
    users: dict[int, int] = field(default_factory=dict)
    """By slot: how many write or read it."""
    gone: set[Key] = field(default_factory=set)
    """Who has left or died."""
    newest: int = -1
    taken: dict[int, int] = field(default_factory=dict)
    """By subscription: the newest sequence that was acquired."""
    lost: dict[int, int] = field(default_factory=dict)
    dropped: int = 0

    def who(self, key: Key) -> Who:
        return self.known.peers.get(key, Who(0))

    def members(self, subscription: int | None, at: int) -> list[str]:
        """The members of a subscription at that time.  None: the producers."""
        return [
            who.name
            for key, who in self.known.peers.items()
            if who.subscription == subscription and who.joined_ns <= at and key not in self.gone
        ]

    def subscription(self, number: int) -> str:
        return self.known.subscriptions.get(number, str(number))

    def used(self, seq: int, more: int) -> None:
        index = seq % self.slots
        self.users[index] = self.users.get(index, 0) + more
        if not self.users[index]:
            del self.users[index]


@dataclass
class ThreadState:
    pid: int
    tid: int
    slice: Slice | None = None
    waits_since_ns: int = 0
    """When the wait began that it was in last."""
    wait: dict[tuple[int, Key], tuple[str, Args]] = field(default_factory=dict)
    """What it waits for, by the index of the ring and the peer: in words, and with details."""
    own: list[Slice] = field(default_factory=list)
    """The user's own slices that are open, one in the other."""
    seen: tuple[int, int] = (0, 0)


@dataclass
class Seen:
    """One event, and where it belongs."""

    ring: RingState
    peer: PeerState
    thread: ThreadState
    at: int
    about: list[int]
    waited: bool = False
    """Whether the peer's thread had waited until then."""
