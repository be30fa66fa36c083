"""What is said of waits: frozen records, which chains.py makes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpuring.printable import printable
from gpuring.registry.stats import PeerStats

Key = tuple[int, int]


@dataclass(frozen=True)
class Step:
    """One wait."""

    ring: str
    """In which ring it is."""
    wants: str
    """ "slot" or "frame" of the ring; "answer" of a service; "room" in a client's ring for parts of
    an answer; "gpu": that work on a slot is done; "session": that the bridge that fills the ring is
    connected; "life": nobody lives who is in the ring."""
    waiting: tuple[PeerStats, ...]
    """Who waits, as far as it sleeps in a verb.  Peers of this ring."""
    by: tuple[PeerStats, ...]
    """Whose move it is: peers of this ring.  The next step is that of the first one.  Empty: nobody
    is there who could make it."""
    subscription: str | None
    """Through which subscription they keep it waiting."""
    seq: int | None
    """The sequence that it is about."""
    age_s: float
    """For how many seconds nothing has moved here."""
    why: str
    """All of this in words."""


@dataclass(frozen=True)
class Culprit:
    """Who could end a jam."""

    reason: str
    """ "dead" or "stopped".  Of a process that runs: "takes" (it takes no frame or call), "holds",
    "keeps" (it holds a frame and asks for the next one), "writes" (it has claimed and does not
    publish), "answers" (it has a call), "reads" (it does not read its answers), "gpu" (its work
    there is not done), "circle" (they wait for each other), "itself" (it waits for what it would
    have to do itself).  Else: "far" (it is on another host), "no reader", "no producer",
    "no engine"; "no near producer" (of the ring on another host whose frames a bridge brings);
    "no exporter" (the reader is that of a bridge); "no session" (the bridge that fills the ring is
    not connected); "no creator" (no producer, and its creator is dead); "dead ring" (nobody lives
    who was in it)."""
    ring: str
    subscription: str | None
    seq: int | None
    peers: tuple[PeerStats, ...]
    """Its process, as a peer of that ring; the processes of a circle; nobody."""
    age_s: float
    """Since when, in seconds."""
    patience_s: float | None = None
    """After how many seconds without it producers go on, if they do not wait for ever."""
    origin: str | None = None
    """The ring whose frames a bridge brings into that ring, and its host: "cam0 of HOST"."""
    command: str | None = None
    """What starts it again, if it is the importer of a bridge.  `PORT` stands there for the port at
    which the exporter listens, which no header has."""
    alone: bool = False
    """Whether nobody goes on without it: no other process fills that ring, or takes calls of that
    service."""
    durable: bool = False
    """Whether producers wait for its subscription, which nobody else reads, without it as well."""


@dataclass(frozen=True)
class Jam:
    """A chain of waits, and who is at its end."""

    steps: tuple[Step, ...]
    culprits: tuple[Culprit, ...]
    """The first one is at the end of these steps.  The others keep the same chain waiting."""
    also: tuple[str, ...] = ()
    """Other rings that wait for the same culprit."""
    others: tuple[PeerStats, ...] = ()
    """Who else waits for it, beside those of the steps: a peer of each process."""

    @property
    def age_s(self) -> float:
        """For how many seconds none of the steps has moved."""
        return min(step.age_s for step in self.steps)

    @property
    def rings(self) -> tuple[str, ...]:
        """All rings that it touches."""
        return tuple(dict.fromkeys((*(step.ring for step in self.steps), *self.also)))


def key_of(peer: PeerStats) -> Key:
    """What stands for its process on this host."""
    return peer.namespace, peer.pid


def named(peer: PeerStats) -> str:
    """A process in words."""
    where = f" of pid namespace {peer.namespace}" if peer.elsewhere else ""
    here = f", here {peer.pid_here}" if peer.elsewhere and peer.pid_here is not None else ""
    return f"{printable(peer.label) or 'a process'} (pid {peer.pid}{where}{here})"


def all_wait(peers: Collection[PeerStats]) -> str:
    """The same of several, as the beginning of a sentence."""
    return f"{', '.join(map(named, peers))} {'waits' if len(peers) == 1 else 'wait'}"
