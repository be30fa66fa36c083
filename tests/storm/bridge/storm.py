"""Two hosts, a bridge between them, and everything that may go wrong with it, at random moments.

Both sides of the bridge, the near producer and the far reader are killed and stopped, and the link
fails, and a stranger sends rubbish.  Each frame arrives once, in order.  A run that counts goes on
until 100,000 frames have arrived and 300 processes were killed, and `--json` keeps its figures.
It needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests import ROOT
from tests.bridge import links
from tests.storm.harness import Failed, Storm, Unavailable
from tests.storm.paper import read

from . import roles
from .books import judge, judge_lossy

PORT = 9760
SLOTS = 16
TROUBLES = {"kill": 8, "stop": 2, "cut": 1, "lose": 1}
"""How often each is chosen."""
STOPPED_S, CUT_S, LOSING_S, BACK_S = 2.0, 5.0, 3.0, 0.3
"""The longest: of a stop, of a cut (a bridge knows after 3 s), of 1 % loss, until somebody who was
killed is started again."""


LULL_S = 4.0
"""The longest time without new trouble, if no frames arrive.  A cut is known after 3 s."""


@dataclass
class Part:
    """A command in a host, which is started again when it was killed."""

    name: str
    host: links.Host
    command: list[Any]
    log: Path
    process: subprocess.Popen[str] | None = None
    again_at: float = 0.0

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = self.host.start(*self.command, stdout=log, stderr=log)


class Bridge(Storm):
    """A bridge between two hosts; its link fails, and who takes part is killed and stopped."""

    PAUSE_S = 0.0  # the time between two frames

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--frames", type=int, default=100_000, help="frames that have to arrive"
        )
        parser.add_argument("--kills", type=int, default=300, help="kills that have to happen")
        parser.add_argument("--every", type=int, default=250, help="mean frames between troubles")
        parser.add_argument("--troubles", nargs="*", choices=TROUBLES, default=list(TROUBLES))
        parser.add_argument(
            "--mbit", type=float, default=100, help="the link's rate; 0 is no limit"
        )
        parser.add_argument("--importer", default="", help="more options of gpuring bridge import")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lossy = "--lossy" in self.args.importer or "--latest" in self.args.importer
        self.parts: dict[str, Part] = {}
        self.heals_at = 0.0
        """When the link does; 0: it is whole."""
        self.healed: tuple[int, float] | None = None
        """How many frames had arrived when the link was healed, and when that was."""
        self.after_heal_ms: list[float] = []
        self.moved: tuple[int, float] = (0, time.monotonic())
        self.after, self.latest = 0, 0.0
        """So many frames arrive before the next trouble, or until then."""
        self.hosts = contextlib.ExitStack()

    # ---- who is there --------------------------------------------------------------------------

    def add(self, name: str, host: links.Host, *command: Any) -> Part:
        part = Part(name, host, [sys.executable, "-m", *command], self.folder / f"{name}.log")
        self.parts[name] = part
        part.start()
        self.moved = self.moved[0], time.monotonic()
        return part

    def begin(self) -> None:
        path = (str(ROOT), os.environ.get("PYTHONPATH", ""))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))  # for all programs
        try:
            self.link = self.hosts.enter_context(links.link())
        except links.Unavailable as why:
            raise Unavailable(str(why)) from None
        near, far = self.link.near, self.link.far
        if self.args.mbit:
            self.link.limit(self.args.mbit)
        made = f"--slots {SLOTS} --shape {roles.WORDS} --dtype u4 --meta {roles.META} --device host"
        self.add("keeper", near, "gpuring", "keep", self.name, *made.split())
        bridge, listen = ("gpuring", "bridge"), f"{near.address}:{PORT}"
        near.run(sys.executable, "-m", *bridge, "keygen", self.folder)
        ours, theirs = (
            ("--key", self.folder / f"bridge-{side}.key") for side in ("export", "import")
        )
        self.until(lambda: self._ask(near, self.name), "the near ring is not there")
        self.add("exporter", near, *bridge, "export", self.name, "--listen", listen, *ours)
        self.add(
            *("importer", far, *bridge, "import", f"{listen}/{self.name}", "--device", "host"),
            *("--slots", SLOTS, *theirs, *self.args.importer.split()),
        )
        self._role("anchor", far)
        self.until(lambda: "ready" in self.parts["anchor"].log.read_text(), "no far ring")
        self._role("writer", near)
        self._role("reader", far)
        self.add("stranger", far, "tests.storm.bridge.roles", "stranger", listen, self.folder)
        self.until((self.folder / roles.FAR).exists, "nothing arrives")
        self.begun = time.monotonic()

    def _role(self, role: str, host: links.Host) -> None:
        self.add(role, host, "tests.storm.bridge.roles", role, self.name, self.folder)

    def workers(self, name: str) -> list[int]:
        """The processes that an exporter or importer has started."""
        host = self.parts[name].host
        known = {part.process.pid for part in self.parts.values() if part.process}
        return [pid for pid in host.processes() if pid not in known]

    # ---- trouble -------------------------------------------------------------------------------

    def torment(self) -> None:
        now = time.monotonic()
        if self.healed and self._arrived() > self.healed[0]:
            self.after_heal_ms.append(1000 * (now - self.healed[1]))
            self.healed = None
        if self._arrived() >= self.after or now > self.latest:
            self.trouble()
            self.after = self._arrived() + self.chance.randrange(1, 2 * self.args.every)
            self.latest = now + LULL_S

    def trouble(self) -> None:
        kinds = self.args.troubles
        what = self.chance.choices(kinds, [TROUBLES[kind] for kind in kinds])[0]
        if what in ("kill", "stop"):
            self._signal(what)
        elif not self.heals_at:
            some = self.chance.choice([(), (self.link.near,), (self.link.far,)])
            if what == "cut":
                self.link.cut(*some)
            else:
                self.link.lose(0.01, *some)
            most_s = CUT_S if what == "cut" else LOSING_S
            self.heals_at = time.monotonic() + self.chance.random() * most_s
            self.counts[what] += 1

    def _signal(self, what: str) -> None:
        whom = self.chance.choice(("exporter", "importer", "writer", "reader"))
        part, pid, of = self.parts[whom], 0, whom
        if whom in ("exporter", "importer") and self.chance.random() < 0.6:
            workers = self.workers(whom)
            pid, of = (self.chance.choice(workers) if workers else 0), f"{whom}'s worker"
        elif part.process:
            pid = part.process.pid
        if pid and pid not in self.asleep:
            with contextlib.suppress(ProcessLookupError):
                self.hit(what, pid, of, STOPPED_S)
                self.counts[what] += 1

    def calm(self, *, all_: bool = False) -> None:
        super().calm(all_=all_)
        if self.heals_at and (all_ or time.monotonic() >= self.heals_at):
            self.heals_at = 0.0
            self.link.heal()
            self.healed = self._arrived(), time.monotonic()

    def look(self) -> None:
        """Starts again the commands that were killed.  Raises Failed if one failed, or nothing
        moves."""
        now = time.monotonic()
        for part in self.parts.values():
            if part.process is None:
                if now >= part.again_at:
                    part.start()
            elif (status := part.process.poll()) is not None:
                if status == 0 and part.name in ("writer", "reader"):
                    continue
                if status != -signal.SIGKILL:
                    raise Failed(f"the {part.name} ended by itself: {status}")
                part.process = None
                part.again_at = now + self.chance.random() * BACK_S
        sizes = sum(path.stat().st_size for path in self.folder.glob("*.rows"))
        if sizes != self.moved[0]:
            self.moved = sizes, now
        elif now > self.moved[1] + self.args.patience:
            raise Failed(f"nothing has moved for {self.args.patience:g} s")

    # ---- the course of it ----------------------------------------------------------------------

    def over(self, seconds: float) -> bool:
        if seconds >= self.args.seconds:
            return True
        if self._arrived() < self.args.frames or self.counts["kill"] < self.args.kills:
            return False
        return int((self.rows(roles.FAR)["mark"] == b"A").sum()) >= self.args.frames

    def finish(self) -> None:
        if self.after_heal_ms:
            self.counts["ms from heal to next frame, p50"] = round(median(self.after_heal_ms))
            self.counts["ms from heal to next frame, longest"] = round(max(self.after_heal_ms))
        self.counts["seconds of trouble"] = round(time.monotonic() - self.begun)
        self.link.heal()
        (self.folder / "finish").touch()
        self.until(lambda: self._ended("writer") and self._ended("reader"), "the end never comes")
        self._balance()
        self._leave()

    def why(self) -> str:
        logs = [
            f"--- {path.name}\n{path.read_text()[-1500:]}" for path in self.folder.glob("*.log")
        ]
        there = [f"{host.address}: {host.processes()}" for host in (self.link.near, self.link.far)]
        return "\n".join([*logs, *there])

    def end(self) -> None:
        """Removes the hosts, and with them all processes that still run there."""
        self.hosts.close()

    def rows(self, name: str) -> np.ndarray:
        return read(self.folder / name, row=roles.ROW)

    def _arrived(self) -> int:
        """How many rows the readers have written: one for each frame, and some more."""
        return (self.folder / roles.FAR).stat().st_size // roles.ROW.itemsize

    def _ended(self, name: str) -> bool:
        process = self.parts[name].process
        return process is not None and process.poll() == 0

    def _ask(self, host: links.Host, name: str) -> Any:
        path = host.shm / f"gpuring.{name}"
        role = ("tests.storm.bridge.roles", "seen", name, self.folder)
        return json.loads(host.run(sys.executable, "-m", *role)) if path.exists() else None

    def _balance(self) -> None:
        near, far = self.rows(roles.NEAR), self.rows(roles.FAR)
        for mark in (b"p", b"P", b"F", b"A", b"L", b"E"):
            self.counts[f"rows {mark.decode()}"] = int(
                (near["mark"] == mark).sum() + (far["mark"] == mark).sum()
            )
        self.counts["redelivered"] = int(far["again"].sum())
        self.counts["frames published a second"] = round(
            self.counts["rows P"] / max(1, self.counts["seconds of trouble"])
        )
        if wrong := (judge_lossy if self.lossy else judge)(near, far):
            raise Failed("\n".join(wrong))
        for host in (self.link.near, self.link.far):
            seen = self._ask(host, self.name)
            self.counts["dead peers cleared"] += seen["reaps"]
            for each in seen["subscriptions"]:
                if each["untaken"] or each["opened"]:
                    raise Failed(f"frames are left: {each}")
            for each in seen["peers"]:
                if each["role"] == "consumer" and each["holding"]:
                    raise Failed(f"a frame is held at the end: {each}")

    def _leave(self) -> None:
        """Ends all processes cleanly, and checks that nothing is left."""
        if not self.counts["kill"] and "is dead" in self.parts["exporter"].log.read_text():
            raise Failed("the exporter's worker ended by itself")
        # The keeper ends before the exporter, which would otherwise leave a durable subscription
        # behind.
        for name in ("stranger", "anchor", "importer", "keeper", "exporter"):
            part = self.parts.pop(name, None)
            if part is None:
                continue
            assert part.process
            part.process.terminate()
            begun = time.monotonic()
            try:
                status = part.process.wait(self.args.patience)
            except subprocess.TimeoutExpired:
                raise Failed(f"SIGTERM does not end the {name}") from None
            if status not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
                raise Failed(f"the {name} ended with {status}")
            self.counts[f"ms until the {name} had ended"] = round(1000 * (time.monotonic() - begun))
        for host in (self.link.near, self.link.far):
            if left := sorted(path.name for path in host.shm.iterdir()):
                raise Failed(f"left in /dev/shm: {left}")
            if running := host.processes():
                raise Failed(f"still running: {running}")
