"""The roles of a storm: what each process does from its start until it is told to end."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuring
from gpuring.ring import kept_memory
from tests.helpers.processes import open_files
from tests.storm.paper import META, WORDS, RingSheet

from . import readers, writers
from .program import ATTACH_S, WAIT_S, Program
from .readers import END, Reader
from .writers import Writer


class Part:
    """An actor (a Reader or a Writer) in one ring, from attach to close."""

    def __init__(self, program: Program, index: int, actor: Any) -> None:
        self.program, self.actor = program, actor
        self.name = program.names[index]
        self.ring: gpuring.Ring | None = None

    def enter(self) -> None:
        until = time.monotonic() + ATTACH_S
        while self.ring is None:
            try:
                self.ring = gpuring.attach(self.name, timeout=0.2)
            except gpuring.RingNotFound:
                if self.program.finishing or time.monotonic() > until:
                    raise
        self.actor.join(self.ring)

    def turn(self, step: Callable[[], None]) -> None:
        """Makes one step, and recovers if it was interrupted."""
        interrupted = ended = False
        try:
            self.program.arm()
            step()
        except KeyboardInterrupt:
            interrupted = True
        except (gpuring.RingTimeout, gpuring.RingFull):
            pass
        except (*END, gpuring.RingClosed):
            ended = True
        if ended:
            self.turn(self.actor.ended)
        self.program.disarm()
        if interrupted:  # not in the handler: the traceback holds what was on its way
            self.actor.recover()

    def leave(self) -> None:
        self.program.disarm()
        self.actor.salvage()
        if self.actor.peer is not None:  # the consumer may have moved to another ring
            self.program.closed(self.actor.peer)
        if self.ring is not None:
            self.program.closed(self.ring)
        self.actor.left()


def one_after_another(program: Program, make: Callable[[], tuple[int, Any]]) -> None:
    """Takes part in one ring until that is over, then in the next one of its name, and so on."""
    while not (program.ending or program.finishing):
        index, actor = make()
        part = Part(program, index, actor)
        try:
            program.arm()
            part.enter()
            while not (actor.over or program.ending):
                part.turn(actor.step)
        except (KeyboardInterrupt, gpuring.RingClosed):
            pass  # before it had joined
        except gpuring.RingNotFound as error:
            if not (program.finishing or program.ending):
                program.find("no ring of this name", error)
        finally:
            part.leave()


def at_all_rings(program: Program) -> None:
    """select() over a consumer of each name."""
    parts: dict[int, Part] = {}
    try:
        while not program.ending and (parts or not program.finishing):
            with contextlib.suppress(KeyboardInterrupt, gpuring.RingClosed, gpuring.RingNotFound):
                _select_once(program, parts)
            program.disarm()
            for index, part in list(parts.items()):
                if part.actor.over or part.actor.peer is None:
                    part.leave()
                    del parts[index]
    finally:
        for part in parts.values():
            part.leave()


def _select_once(program: Program, parts: dict[int, Part]) -> None:
    for index in range(len(program.names)):
        if index not in parts and not program.finishing:
            parts[index] = Part(program, index, Reader(program, index, (readers.by_hand,)))
            program.arm()
            parts[index].enter()
    program.arm()
    by_peer = {part.actor.peer: part for part in parts.values()}
    ready = gpuring.select(by_peer, WAIT_S)
    program.disarm()
    for part in [by_peer[peer] for peer in ready]:
        part.turn(lambda part=part: part.actor.step(0))


def crowd(program: Program, *, daemon: bool) -> None:
    """Threads with an endpoint each.  The main thread gets the signals, and does not wait for
    daemons when it ends."""

    def run(make: Callable[[], tuple[int, Any]]) -> None:
        try:
            one_after_another(program, make)
        except BaseException as error:
            if not (daemon and program.ending):
                program.find("a thread failed", error)

    makes = [
        lambda: (0, Reader(program, 0, (readers.by_hand, readers.many), subscription=None)),
        lambda: (1, Reader(program, 1, (readers.with_block, readers.loop), subscription=None)),
        lambda: (0, Writer(program, 0, (writers.by_hand, writers.many))),
    ]
    threads = [threading.Thread(target=run, args=(make,), daemon=daemon) for make in makes]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            try:
                program.arm()
                time.sleep(0.05)
                program.disarm()
            except KeyboardInterrupt:
                pass
    finally:
        program.disarm()
        program.ending = True
        if not daemon:
            for thread in threads:
                thread.join()


def keep(program: Program, index: int) -> None:
    """Creates a ring, and replaces it again and again, under those who attach."""
    name, ring, sheet = program.names[index], None, None
    told = False
    try:
        while not told:
            try:
                program.arm()
                before, ring = ring, gpuring.create(
                    name, slots=program.chance.randrange(4, 17), shape=WORDS, dtype="u4", meta=META,
                    device="host", max_peers=48, max_subscriptions=24, replace=True,
                )  # fmt: skip
                with program.quiet():
                    program.step()
                    if sheet:
                        sheet("Z")
                        sheet.close()
                    who = f"{program.role}.{program.number}.{program.participation()}"
                    sheet = RingSheet(program.folder, ring, index, who)
                if before:
                    program.closed(before)
                    program.arm()
                until = time.monotonic() + program.chance.uniform(0.5, 4)
                while time.monotonic() < until and not program.finishing:
                    program.step()
                    time.sleep(0.01)
                if program.chance.random() < 0.5:
                    ring.close()
                    time.sleep(program.chance.random() * 0.05)
            except KeyboardInterrupt:
                pass
            told = program.ending or program.finishing
    finally:
        program.disarm()
        if ring:
            ring.close()
        if sheet:
            sheet("Z")


# ---- who plays what ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Role:
    play: Callable[[Program], None]
    steady: bool = False
    """Never killed or told to end, so its subscription lasts as long as its ring."""


def _reads(index: int, *ways: readers.Way, **options: Any) -> Callable[[Program], None]:
    return lambda program: one_after_another(
        program, lambda: (index, Reader(program, index, ways, **options))
    )


def _writes(index: int, *ways: writers.Way) -> Callable[[Program], None]:
    return lambda program: one_after_another(program, lambda: (index, Writer(program, index, ways)))


_JOBS: dict[str, Any] = {"subscription": "jobs", "start": "oldest"}
_LOSSY: dict[str, Any] = {"lossless": False}

ROLES = {
    "keeper-0": Role(lambda program: keep(program, 0)),
    "keeper-1": Role(lambda program: keep(program, 1)),
    "anchor-0": Role(_reads(0, readers.with_block, readers.many, **_JOBS), steady=True),
    "anchor-1": Role(_reads(1, readers.by_hand, readers.awaited, **_JOBS), steady=True),
    "alone-0": Role(_reads(0, readers.by_hand, readers.many, readers.loop), steady=True),
    "writer-0": Role(_writes(0, writers.by_hand, writers.with_block)),
    "writer-1": Role(_writes(1, writers.many, writers.by_hand)),
    "awaitingwriter-0": Role(_writes(0, writers.awaited)),
    "otherwriter-1": Role(_writes(1, writers.with_block, writers.awaited)),
    "jobs-0": Role(_reads(0, readers.two_at_once, readers.many, **_JOBS)),
    "jobs-1": Role(_reads(1, readers.two_at_once, readers.loop, **_JOBS)),
    "alone-1": Role(_reads(1, readers.by_hand, readers.many, readers.two_at_once)),
    "awaiting-1": Role(_reads(1, readers.awaited, readers.awaited_loop)),
    "lossy-0": Role(_reads(0, readers.by_hand, readers.many, **_LOSSY)),
    "newest-0": Role(_reads(0, readers.latest, readers.by_hand, **_LOSSY)),
    "newest-1": Role(_reads(1, readers.latest, **_LOSSY)),
    "follower-0": Role(_reads(0, readers.loop, subscription="recorder", reattach=True)),
    "follower-1": Role(_reads(1, readers.awaited_loop, reattach=True)),
    "handing-1": Role(_reads(1, readers.by_another_thread)),
    "select": Role(at_all_rings),
    "crowd": Role(lambda program: crowd(program, daemon=False)),
    "daemons": Role(lambda program: crowd(program, daemon=True)),
}


def play(program: Program) -> None:
    """The whole life of a process.  Anything that it leaves behind at a clean end is a finding."""
    warnings.simplefilter("ignore", ResourceWarning)  # from a ring whose creation was interrupted
    try:
        ROLES[program.role].play(program)
    except SystemExit:
        pass
    except BaseException as error:
        program.find("failed", error)
    program.disarm()
    if program.role != "daemons" and (program.finishing or not program.role.startswith("keeper")):
        _look_for_leftovers(program)


def _look_for_leftovers(program: Program) -> None:
    def left() -> list[str]:
        links = open_files().values()
        return [link for link in links if any(name in link for name in program.names)]

    gc.collect()  # tracebacks of interrupted steps hold slots
    until = time.monotonic() + ATTACH_S
    while (found := left()) and time.monotonic() < until:
        time.sleep(0.01)
        program.step()
        kept_memory.free()  # a creator keeps the memory until all others have left
    if found:
        program.find(f"descriptors left open: {found}")
    native = len(list(Path("/proc/self/task").iterdir())) - threading.active_count()
    if native > 2:  # the watchdog and the notifier thread, which a process keeps
        program.find(f"{native} native threads left")
