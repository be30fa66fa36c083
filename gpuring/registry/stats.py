"""What a ring is doing: frozen records, which survey.py makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Hold:
    """A slot that a peer has claimed or a frame that it holds."""

    seq: int
    """The frame's sequence."""
    age_s: float
    """For how long the peer has had it, in seconds.  It is exact to about 4 ms."""
    by: int
    """The number of the producer whose frame it is."""


@dataclass(frozen=True)
class PeerStats:
    """One joined producer or consumer."""

    number: int
    """Its number in the ring's peer table, 0 … 249.  Another peer gets it when this one is gone."""
    role: str
    """ "producer" or "consumer"."""
    subscription: str | None
    """The name of a consumer's subscription, as in SubscriptionStats.name.  None for a producer."""
    pid: int
    """The id of its process, in that process's own pid namespace."""
    label: str
    """What it was called at its join, or the name of its program."""
    elsewhere: bool
    """Whether its process is of another pid namespace, such as that of a container.  Then another
    process here may have the same pid."""
    namespace: int
    """The inode of that pid namespace.  A pid and a namespace together stand for one process."""
    pid_here: int | None
    """The pid that it has in our pid namespace, where signals are sent to it.  None: it is of
    another one and is not seen here, because that is no part of ours or is of another user."""
    alive: bool
    """False if its process died and nobody has cleared its entry yet."""
    stopped: bool
    """Whether its process is stopped, by SIGSTOP, by Ctrl-Z or in a debugger.  It then does nothing
    and keeps what it has.  Always False for a process without a `pid_here`, and for one that is
    frozen with its container."""
    joined_ns: int
    """When it joined: a time.monotonic_ns().  Two peers that had one number one after the other
    differ in it."""
    age_s: float
    """Seconds since it joined."""
    waiting: bool
    """Whether it waits: it sleeps in claim, acquire or select, or its event loop waits at its
    descriptor."""
    frames: int
    """How many frames it has published, or acquired."""
    lost: int
    """How many frames it has missed, as `slot.lost` counts them."""
    torn: int
    """How many torn frames it has passed over."""
    dropped: int
    """How many frames a producer has dropped because no slot was free (`Producer.try_claim`), or a
    client of a service of its requests (`Client.try_request`)."""
    pending: int
    """On how many slots its GPU has not finished what it promised."""
    unfinished: tuple[Hold, ...]
    """The frames of these slots, as far as they are still there."""
    asked_s: float | None
    """Seconds since it last asked for calls, or had nothing to take, as an engine of a service.
    None if it never has."""
    gpu: str | None
    """The UUID of the GPU on which it uses the slots, as in RingStats.gpu.  None: by the CPU."""
    unregistered: str | None
    """Why CUDA has not registered the slots of a pinned ring for that GPU, so that each of its
    copies is waited for.  None: it has, or there is nothing to register."""
    holding: tuple[Hold, ...]
    """What it has claimed and not published, or acquired and not released."""


@dataclass(frozen=True)
class Death:
    """A peer that died, and what was done about it."""

    number: int
    """The number that it had in the peer table."""
    role: str
    """ "producer" or "consumer"."""
    pid: int
    """The id of its process."""
    label: str
    """What it was called at its join, or the name of its program."""
    age_s: float
    """Seconds since it was cleared."""
    voided: int
    """How many of its claims became void."""
    torn: int
    """How many of its published frames were torn: its GPU work on them was not finished."""
    reopened: int
    """How many frames it held.  They went to other members, or were dropped if its subscription was
    made with `redeliver=False`."""
    raised: int
    """How many fences were raised for it, so that the streams that waited for it go on."""


@dataclass(frozen=True)
class SubscriptionStats:
    """One subscription: a position in the stream of frames, which its members share."""

    name: str
    """As it was given to `Ring.consumer`.  An unnamed one has "#" and eight hexadecimal digits."""
    lossless: bool
    """Whether producers wait for it."""
    redeliver: bool
    """Whether the frames of a member that dies go to another member."""
    start: int
    """The first sequence it covers."""
    lag: int
    """How far it is behind: how many sequences there are from the oldest frame that it has not
    released to the newest claim.  Void sequences and claims that are not published yet count.
    Frames that a lossy one has passed over do not.  0 if there is no frame for it.  Producers wait
    for a lossless one that is as far behind as the ring has slots."""
    lost: int
    """How many frames its members have missed, as `slot.lost` of each counts them."""
    opened: int
    """How many frames wait for another member, because one gave them back or died with them."""
    untaken: int
    """How many frames are published, and no member has taken them."""
    oldest_s: float
    """For how many seconds the oldest of these has been published.  0 if there is none."""
    taken_s: float | None
    """Seconds since a member took one of the frames that are in the ring.  None: none has."""
    members: tuple[int, ...]
    """The peer numbers of its members."""
    durable: bool
    """Whether it stays when its last member leaves or dies (`Ring.subscribe`)."""
    patience_s: float | None
    """For how many seconds producers wait for a durable subscription while it has no member.  None:
    for ever, or it is not durable."""
    unread_s: float | None
    """For how many seconds a durable subscription has had no member.  None: it has one, or it is
    not durable."""
    given_up: bool
    """Whether its patience was over, so that producers do not wait for it any more."""
    far: str
    """If a bridge carries its frames to another host: the subscription that keeps the ring there
    from taking more, as its importer said last, cut after 32 bytes.  Else empty."""


@dataclass(frozen=True)
class InTheWay:
    """Who keeps the next claim of a ring waiting."""

    why: str
    """Who it is, which sequence it is about, and since when, in the words of `RingFull`."""
    way_out: str
    """What can be done about it, in its words as well.  Mostly empty: `gpuring why` says more."""
    peers: tuple[int, ...]
    """The numbers of the peers that are waited for: the one that has the slot, or all members of
    the subscription that has not taken the frame."""
    subscription: str | None
    """The name of the subscription that is waited for.  None if a producer has the slot."""
    seq: int
    """The sequence that has to be released, or published, first."""
    age_s: float
    """For how many seconds it has been held, published, or claimed."""


DRIFT = 1e-4
"""At most so many seconds a second the clocks of two hosts are taken to drift apart."""


@dataclass(frozen=True)
class Clock:
    """How the clocks of a bridge's two hosts differ.  All is CLOCK_MONOTONIC, in nanoseconds."""

    ahead_ns: int
    """How far the near host's clock was ahead of this host's."""
    error_ns: int
    """How far that may be off: half of the round trip with which it was measured."""
    time_ns: int
    """When it was measured, on the clock of this host."""

    def error_at(self, time_ns: int) -> int:
        """How far it may be off at `time_ns`, another time on that clock: the clocks drift."""
        return self.error_ns + round(DRIFT * abs(time_ns - self.time_ns))


NO_SESSION_S = 20.0
"""A bridge has no session if it has neither published nor told a measurement of the other clock for
so long.  In a session it tells the best one of the last 16 s (bridge/importer/near_clock.py)."""


@dataclass(frozen=True)
class Link:
    """Where the frames of a ring come from that a bridge fills, and how far it has come."""

    host: str
    """The host of the near ring, as the bridge names it."""
    ring: str
    """The name of the near ring."""
    epoch: str
    """The epoch of the near ring.  Empty as long as the bridge has not begun."""
    seq: int
    """The sequence of the near ring up to which everything was published here or skipped."""
    lost: int
    """How many sequences of the near ring the bridge has not brought so far."""
    clock: Clock | None
    """The clock of the near host.  None: the bridge has not measured it yet."""
    heard_s: float | None
    """How long ago it was measured, or the newest frame was published, whichever was later.  None:
    neither has happened yet."""

    @property
    def connected(self) -> bool:
        """Whether the bridge has a session with the near host.  True for 20 s at most after one."""
        return self.heard_s is not None and self.heard_s < NO_SESSION_S


@dataclass(frozen=True)
class RingStats:
    """One look at a ring."""

    name: str
    """The name by which others attach."""
    epoch: str
    """128 random bits in hexadecimal.  They distinguish rings of the same name."""
    memory: str
    """ "host", "ipc", "vmm", "pool" or "pinned", as `Ring.memory`."""
    sync: str
    """ "timeline", "event" or "host"."""
    gate: str
    """ "stream" or "host"."""
    slots: int
    """How many slots the ring has."""
    slot_nbytes: int
    """The distance of two slots in memory, in bytes."""
    cursor: int
    """The next sequence to be claimed.  A ring of N slots begins with N."""
    closed: bool
    """Whether it was closed, by its creator or because it was replaced."""
    creator_pid: int
    """The id of the process that owns its memory."""
    creator_elsewhere: bool
    """Whether it is in another pid namespace, such as that of a container, so that its pid means
    nothing here."""
    creator_alive: bool
    """Whether that process lives.  If not, nobody new can attach to a ring with `memory` "ipc"."""
    created_ns: int
    """When it was created: CLOCK_REALTIME in nanoseconds, as `time.time_ns()`."""
    reaps: int
    """How many dead peers were cleared so far."""
    dropped: int
    """How many frames producers have dropped because no slot was free (`Producer.try_claim`)."""
    producers_in_all: int
    """How many producers make the stream, as `create(producers=)` said."""
    producers_left: int
    """How many producers have left cleanly so far."""
    producers_died: int
    """How many producers have died so far."""
    published_s: float | None
    """How long ago the newest frame was published that the ring has.  None: it has none."""
    in_the_way: InTheWay | None
    """Who keeps the next claim waiting.  None if the next slot is free, or the ring was closed."""
    subscriptions: tuple[SubscriptionStats, ...]
    """The subscriptions that there are now."""
    peers: tuple[PeerStats, ...]
    """The peers that have joined and not left."""
    deaths: tuple[Death, ...]
    """The last deaths of peers, the latest first."""
    gpu: str | None
    """The UUID of the GPU that holds the slots, as `nvidia-smi -L` shows it behind GPU- or MIG-.
    None on a host or pinned ring."""
    link: Link | None
    """Where its frames come from if a bridge fills it.  None for every other ring."""
    about: dict[str, Any] | None
    """What the ring of requests of a service says of the service.  None for every other ring."""

    @property
    def producers(self) -> tuple[PeerStats, ...]:
        """The producers among `peers`."""
        return tuple(peer for peer in self.peers if peer.role == "producer")

    @property
    def taken_over(self) -> bool:
        """Whether its creator, the importer of a bridge, is dead, and another importer goes on with
        the ring in its place."""
        pids = {peer.pid for peer in self.producers}
        went_on = self.link is not None and self.creator_alive and pids
        return bool(went_on) and self.creator_pid not in pids

    @property
    def is_service(self) -> bool:
        """Whether it is the ring of requests of a service."""
        return self.about is not None and "service" in self.about

    @property
    def held_up(self) -> bool:
        """Whether a producer sleeps until somebody has made way."""
        return self.in_the_way is not None and any(peer.waiting for peer in self.producers)

    @property
    def state(self) -> str:
        """ "open", "closed", "creator dead" (and others are in it) or "dead" (nobody is in it)."""
        if self.creator_alive or self.closed:
            return "closed" if self.closed else "open"
        return "creator dead" if any(peer.alive for peer in self.peers) else "dead"


class Rings(list[RingStats]):
    """What `gpuring.ls` returns: a list of RingStats, which an interpreter shows as a table."""

    def __repr__(self) -> str:
        if not self:
            return "[]"
        width = max(4, *(len(one.name) for one in self))
        head = f"{'NAME':{width}}  MEMORY  SLOTS      SLOT BYTES     CLAIMED  PEERS  STATE"
        rows = (
            f"{one.name:{width}}  {one.memory:6}  {one.slots:5}  {one.slot_nbytes:14,}  "
            f"{one.cursor - one.slots:10}  {len(one.peers):5}  {one.state}"
            for one in self
        )
        return "\n".join((head, *rows))
