"""Mixed load for a long time: peers join, leave and are killed; afterwards the books must balance.

    python -m tests.storm soak --where host --json bench/results/soak-host.json

Two producers; a lossless reader alone, a shared subscription of 2 to 4 members, lossy readers.  One
of each kind stays to the end, so that what it uses can be watched; the others come and go, and some
are killed.  Each frame's whole content follows from its producer and its number.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuring.native.snapshot import snapshot
from tests.gpu import library
from tests.helpers.places import PLACES, Place
from tests.helpers.processes import PATIENCE_S, Child
from tests.storm.harness import Storm
from tests.storm.paper import META, ROW, WORDS, read
from tests.storm.soak_roles import HELD, consume, produce

SLOTS = 8
MOST = {"producer": 2, "jobs": 4, "lossy": 2}


@dataclass
class Actor:
    number: int
    role: str
    stays: bool
    path: Path
    child: Child
    joined: bool = False
    told: bool = False
    killed: bool = False


class Soak(Storm):
    """Peers of one ring that come, go and are killed; what those who stay use may not grow."""

    SECONDS = 600.0

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        names = [place.name for place in PLACES]
        parser.add_argument("--where", choices=names, default="host")
        parser.add_argument(
            "--crowded", action="store_true", help="others use the GPU, so its memory is not judged"
        )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.place = next(place for place in PLACES if place.name == self.args.where)
        self.PAUSE_S = 1.0 if self.place.on_gpu else 0.5
        self.limits = self.args.seconds + 3 * PATIENCE_S, os.getpid()
        self.actors: list[Actor] = []
        self.ended: list[Actor] = []
        self.torn, self.next_sample = 0, 0.0
        self.samples: list[dict[str, Any]] = []
        self.told: dict[str, Any] = {}
        self.made = contextlib.ExitStack()

    def start(self, role: str, stays: bool = False) -> Actor:
        number = len(self.actors) + len(self.ended)
        path = self.folder / str(number)
        common = self.ring.name, self.place, number, str(path)
        if role == "producer":
            child = Child(produce, (*common, *self.limits), PATIENCE_S)
        else:
            child = Child(consume, (*common, role, *self.limits), PATIENCE_S)
        self.actors.append(Actor(number, role, stays, path, child))
        return self.actors[-1]

    def look(self) -> None:
        for actor in list(self.actors):
            self.hear(actor)

    def hear(self, actor: Actor) -> None:
        """Receives what an actor has sent: that it joined, that it is done, or its error.  Does not
        wait."""
        while actor in self.actors and actor.child.pipe.poll():
            kind, value = actor.child._next()
            if kind == "sent":
                actor.joined = True
                self.counts[f"join {actor.role}"] += 1
                if actor.role == "producer":
                    actor.child.send()
            else:
                self.torn += value or 0
                actor.child.process.join(PATIENCE_S)
                assert actor.child.process.exitcode == 0, actor
                self.leaves(actor, "leave")

    def leaves(self, actor: Actor, how: str) -> None:
        self.counts[f"{how} {actor.role}"] += 1
        actor.child.end()
        self.actors.remove(actor)
        self.ended.append(actor)

    def tell(self, actor: Actor) -> None:
        actor.told = True
        actor.child.send()

    def torment(self) -> None:
        """Lets a peer join, leave or die, but never the one of each kind that stays."""
        role = self.chance.choice([*MOST])
        there = [actor for actor in self.actors if actor.role == role]
        guests = [actor for actor in there if actor.joined and not actor.stays and not actor.told]
        least = 2 if role == "jobs" else 1
        if len(there) < MOST[role] and self.chance.random() < 0.6:
            self.start(role)
        elif guests and sum(actor.joined for actor in there) > least:
            guest = self.chance.choice(guests)
            if self.chance.random() < 0.4:
                self.tell(guest)
            else:
                guest.child.kill()
                guest.killed = True
                self.leaves(guest, "kill")

    def sample(self, t: float) -> None:
        shm = [path.stat() for path in Path("/dev/shm").glob(f"gpuring.{self.ring.name}*")]
        row: dict[str, Any] = {"t": round(t, 1), "peers": len(self.actors), "shm_entries": len(shm),
                               "shm_bytes": sum(512 * stat.st_blocks for stat in shm)}  # fmt: skip
        for who, pid in [
            ("parent", os.getpid()),
            *((f"{a.role}", a.child.pid) for a in self.actors if a.stays),
        ]:
            proc = Path("/proc", str(pid))
            row[f"{who}_rss"] = int((proc / "statm").read_text().split()[1]) * 4096
            row[f"{who}_fds"] = len(list((proc / "fd").iterdir()))
            row[f"{who}_threads"] = len(list((proc / "task").iterdir()))
        self.samples.append(row)

    def begin(self) -> None:
        made = self.place.create(self.name, slots=SLOTS, shape=WORDS, dtype="u4", meta=META)
        self.ring = self.made.enter_context(made)
        self.used = device_used(self.place)
        self.stay = [self.start(role, stays=True) for role in ("alone", "jobs", "lossy")]
        self.until(self.all_joined, "not all have joined")
        self.stay.append(self.start("producer", stays=True))
        self.until(self.all_joined, "no producer has joined")

    def all_joined(self) -> bool:
        return all(actor.joined for actor in self.actors)

    def over(self, seconds: float) -> bool:
        """Whether the time is over, and somebody was killed.  That may take longer where processes
        start slowly."""
        assert all(actor in self.actors for actor in self.stay), "a peer that stays has left"
        if seconds >= self.next_sample:
            self.sample(seconds)
            self.next_sample = seconds + max(0.2, self.args.seconds / 300)
        late_s = seconds - self.args.seconds
        assert late_s < PATIENCE_S, "nobody came who could be killed"
        return late_s >= 0 and any(event.startswith("kill") for event in self.counts)

    def finish(self) -> None:
        # A peer that joins after the last producer has left would find no stream.
        self.until(self.all_joined, "not all have joined")
        for roles in (("producer",), ("alone", "jobs", "lossy")):
            mine = [actor for actor in self.actors if actor.role in roles]
            for actor in mine:
                if actor.role == "producer" and not actor.told:
                    self.tell(actor)
            self.until(lambda mine=mine: not any(a in self.actors for a in mine), "they go on")
        self.ring._header.reap()
        self.told = {**self.books(), "growth": self.growth(self.args.seconds)}
        if not self.args.crowded:  # the driver tears contexts down
            self.until(
                lambda: device_used(self.place) <= self.used + 2**24, "the GPU's memory is used"
            )
        self.made.close()
        self.told["device_grown"] = device_used(self.place) - self.used

    def end(self) -> None:
        for actor in self.actors:
            actor.child.end()
        self.made.close()

    def result(self) -> dict[str, Any]:
        every = max(1, len(self.samples) // 60)
        events = {"events": super().result()}
        return self.told | events | {"samples": self.samples[::every]}

    # ---- the books -----------------------------------------------------------------------------

    def log(
        self, role: str, killed: bool | None = None, mark: bytes = b"A", only: Actor | None = None
    ) -> np.ndarray:
        rows = [np.zeros(0, ROW)]
        for actor in [only] if only else self.ended:
            if actor.role == role and killed in (None, actor.killed):
                row = read(actor.path)
                rows.append(row[row["mark"] == mark])
        return np.concatenate(rows)

    def books(self) -> dict[str, int]:
        kills = Counter(actor.role for actor in self.ended if actor.killed)
        surely, perhaps = (keys(self.log("producer", mark=mark)) for mark in (b"P", b"p"))
        assert len(surely) == len(np.unique(surely))
        assert len(perhaps) - len(surely) <= kills["producer"]
        killed_producers = [a.number for a in self.ended if a.role == "producer" and a.killed]

        def nothing_missing(seen: np.ndarray) -> int:
            assert not len(np.setdiff1d(seen, perhaps)), "frames that nobody published"
            missing = np.setdiff1d(surely, seen)
            by = Counter((missing >> 40).tolist())
            allowed = SLOTS if self.place.on_gpu else 0  # GPU work that a death cut off
            assert all(p in killed_producers and n <= allowed for p, n in by.items()), by
            return len(missing)

        alone = self.log("alone")
        assert (np.diff(alone["seq"]) > 0).all()
        gives_back = "hostgate" in self.place.name  # acquire(0) may give frames back
        assert gives_back or not alone["again"].any()
        missing = nothing_missing(keys(alone))
        assert len(alone) == len(np.unique(keys(alone)))

        living, dead = self.log("jobs", killed=False), self.log("jobs", killed=True)
        confirmed = keys(self.log("jobs", killed=True, mark=b"R"))
        assert len(living) == len(np.unique(keys(living))), "a frame came twice"
        nothing_missing(np.concatenate([keys(living), confirmed]))
        again = living[np.isin(keys(living), keys(dead))]
        assert again["again"].all(), "a redelivered frame is not marked"
        unlogged = living["again"].sum() - len(again)  # killed before it could log them
        twice = len(np.intersect1d(keys(living), confirmed))  # killed before the release
        assert gives_back or unlogged <= HELD * kills["jobs"], unlogged
        assert twice <= HELD * kills["jobs"], twice

        seen_lossy = 0
        for actor in (a for a in self.ended if a.role == "lossy"):
            lossy = self.log("lossy", only=actor)
            gaps = np.diff(lossy["seq"])
            assert gives_back or (gaps > 0).all()
            assert self.place.on_gpu or (gaps - 1 == lossy["lost"][1:]).all(), "`lost` is wrong"
            assert not len(np.setdiff1d(keys(lossy), perhaps))
            seen_lossy += len(lossy)
        stats = self.ring.stats()
        assert (stats.peers, stats.subscriptions, stats.reaps) == ((), (), kills.total()), stats
        slots = snapshot(self.ring._header)["slots"]
        assert {slot["phase"] for slot in slots} <= {"ready", "void", "torn"}
        return {"published": len(surely), "alone": len(alone), "jobs": len(living),
                "jobs_dead": len(dead), "redelivered": int(living["again"].sum()), "twice": twice,
                "lossy": seen_lossy, "cut_off": missing, "torn_told": self.torn}  # fmt: skip

    def growth(self, seconds: float) -> dict[str, float]:
        """For each figure, the median of the last quarter less that of the second quarter."""
        n = len(self.samples)
        assert n >= 8, n
        grown = {
            key: statistics.median(row[key] for row in self.samples[3 * n // 4 :])
            - statistics.median(row[key] for row in self.samples[n // 4 : n // 2])
            for key in self.samples[0].keys() - {"t", "peers"}
        }
        rss = (2 if seconds >= 60 else 8) * 2**20  # allocators settle for a while
        most = {"rss": rss, "fds": MOST["producer"] + MOST["jobs"] + MOST["lossy"], "threads": 1}
        for key, value in grown.items():
            assert value <= most.get(key.split("_")[-1], 0), f"{key} grew by {value}"
        return grown


def keys(log: np.ndarray) -> np.ndarray:
    return log["producer"].astype("i8") << 40 | log["k"]


def device_used(place: Place) -> int:
    """The bytes in use on the GPU, up to a constant."""
    return -library.free_nbytes() if place.on_gpu else 0
