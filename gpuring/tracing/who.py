"""What the header of a traced ring tells of its peers.  A copy is read, which changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuring.native import Header
from gpuring.native.snapshot import snapshot
from gpuring.printable import printable
from gpuring.registry.subscriptions import text_of

ID_MASK = 0xFFFFFFFF
"""An event has the low half of a peer's id."""

_ELSEWHERE = " (of another pid namespace)"
"""Behind a label: the pid means nothing here."""


@dataclass(frozen=True)
class Who:
    """A peer, as far as it is known.  `subscription` is its number, or None of a producer."""

    pid: int
    label: str = ""
    subscription: int | None = None
    joined_ns: int = 0

    @property
    def name(self) -> str:
        return f"{self.label or 'a process'}, pid {self.pid}" if self.pid else "a process"


@dataclass(frozen=True)
class Death:
    time_ns: int
    pid: int
    number: int
    label: str


@dataclass
class Known:
    """All peers that were ever seen in one ring, by number and id."""

    peers: dict[tuple[int, int], Who] = field(default_factory=dict)
    subscriptions: dict[int, str] = field(default_factory=dict)
    deaths: dict[int, Death] = field(default_factory=dict)
    """By their number, which counts from 0."""
    here: set[int] = field(default_factory=set)
    """The processes of this pid namespace: only their pids mean anything here."""

    def look(self, header: Header) -> None:
        seen = snapshot(header)
        for number, peer in seen["peers"].items():
            key = number, peer["id"] & ID_MASK
            label = printable(text_of(peer["label"])) + _ELSEWHERE * peer["elsewhere"]
            self.peers[key] = Who(peer["pid"], label, peer["subscription"], peer["joined_ns"])
            if not peer["elsewhere"]:
                self.here.add(peer["pid"])
        for number, subscription in seen["subscriptions"].items():
            self.subscriptions[number] = printable(text_of(subscription["name"]))
        reaps = header.reaps
        for k, death in enumerate(seen["deaths"]):  # the latest first
            self.deaths[reaps - 1 - k] = Death(
                death["time_ns"], death["pid"], death["number"], printable(text_of(death["label"]))
            )


def threads_of(pid: int) -> Iterator[tuple[int, str]]:
    """The threads of a process, by their ids and names.  Nothing if it is gone."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            name = (task / "comm").read_text(errors="replace")
            yield int(task.name), printable(name.strip())
