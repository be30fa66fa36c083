"""Remove rings whose processes are all dead, slots that belong to no ring, and sockets of the dead.

Only what belongs to you is removed, and nothing that a living process uses.
"""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuring import native
from gpuring.cli.owners import myself, user
from gpuring.cli.services import service_of
from gpuring.cli.text import columns, complain, wrap
from gpuring.cli.trouble import CommandError
from gpuring.native import Header
from gpuring.printable import counted
from gpuring.registry import leftovers, processes, segment, sockets, survey
from gpuring.registry.segment import look
from gpuring.registry.users import told, users


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these rings (default: all)")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="remove nothing; say what would be removed, what would stay, and why",
    )


def run(args: argparse.Namespace) -> int:
    asked = {segment.check_name(name) for name in args.names}
    of_them = {name for name in segment.listing() if service_of(name) in asked} if asked else set()
    wanted: Callable[[str], object] = (asked | of_them).__contains__ if asked else lambda _: True
    fates = {
        fate.name: fate for fate in foresee(wanted) if fate.goes or fate.ring not in of_them - asked
    }
    if args.dry_run:
        for fate in fates.values():
            _say(f"{fate.name} {'would be removed' if fate.goes else 'would stay'}: {fate.why}")
    else:
        for name in _remove(wanted):
            _say(f"removed {name}" + (f": {fates[name].why}" if name in fates else ""))
    stale = [] if asked else sockets.remove_stale(only_look=args.dry_run)
    for name in stale:
        done = f"{name} would be removed" if args.dry_run else f"removed {name}"
        _say(f"{done}: sockets of the dead")
    status = 0
    for name in sorted(asked - {fate.ring for fate in fates.values()}):
        complain(f"gpuring clean: no ring named {name!r} on this host")
        status = 1
    for fate in fates.values() if asked else ():
        if not fate.goes:
            status = 1
            if not args.dry_run:
                complain(f"gpuring clean: {fate.name} stays: {fate.why}")
    if not asked and not stale and not any(fate.goes for fate in fates.values()):
        _say(f"Nothing to remove: user {myself()} has no dead rings on this host.")
    return status


def _remove(wanted: Callable[[str], object]) -> list[str]:
    try:
        return leftovers.tidy(wanted)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        raise CommandError(
            f"nothing can be removed, because {segment.SHM} is mounted read-only here. Make it "
            f"writable (as root: mount -o remount,rw {segment.SHM}), or run this where it is"
        ) from error


def _say(text: str) -> None:
    print(wrap(text, columns(), "  "))


# ---- what would be done, and why ---------------------------------------------------------------


@dataclass(frozen=True)
class Fate:
    """What becomes of one ring, or of slots that have none."""

    ring: str
    name: str
    """The ring's, or that of the slots' segment: as `leftovers.tidy` gives it."""
    goes: bool
    why: str


def foresee(wanted: Callable[[str], object]) -> Iterator[Fate]:
    """What `leftovers.tidy` would do with each wanted name.  Changes nothing.

    tidy() looks again for itself, under a lock; this is for people.
    """
    for name, slots in sorted(segment.listing().items()):
        if not wanted(name):
            continue
        (goes, why), own = _ring(name)
        if why:
            yield Fate(name, name, goes, why)
        if goes or own == ANY:
            continue
        for each in slots:
            kept = each == own or native.is_kept_aside(name, segment.path_of(each))
            if not kept and segment.owner(each) == os.geteuid():
                left = native.is_left(segment.path_of(each))
                why = "slots that belong to no ring" if left else "a process is making them now"
                yield Fate(name, each[1:], left, why)


ANY = "*"
"""In place of the slots of a ring that cannot be read: any of them may be its own."""


def _ring(name: str) -> tuple[tuple[bool, str], str]:
    """Whether a ring goes, and why or why not (nothing: there is none); the segment of its slots
    (nothing: it is not known, and another user's)."""
    try:
        with look(segment.header_name(name)) as named:
            if not named.is_ours:
                if named.odd:
                    return (False, f"it is {named.odd}, and no ring"), ""
                step = segment.as_user(named.uid, f"clean {name}")
                owner = f"only its owner, user {user(named.uid)}, can remove it. As root: {step}"
                return (False, owner), ""
            with named.open() as file:
                try:
                    header = Header.read(file.fd)
                except native.Damaged as error:
                    used = native.in_use(file.fd)
                    who = _who_uses(name) if used else "no process uses it"
                    return (
                        not used,
                        f"this version of gpuring cannot read it ({error}), and {who}",
                    ), ANY
    except FileNotFoundError:
        return (False, ""), ""
    except OSError as error:
        return (False, f"it cannot be opened ({error.strerror or error})"), ""
    return _of_whole(name, header), segment.slots_name(name, header.epoch)


def _who_uses(name: str) -> str:
    """What keeps a ring that cannot be read."""
    known = users([name]).get(name, {})
    if not known:
        return "a process uses it, which is another user's or in another pid namespace"
    return f"{told(known)} use{'s' if len(known) == 1 else ''} it"


def _of_whole(name: str, header: Header) -> tuple[bool, str]:
    """For a ring that can be read: whether it goes, and why or why not."""
    peers = len(header.live_peers())
    creator = f"its creator ({processes.told(header.creator_pid, header.creator_elsewhere)})"
    if native.is_kept(header):
        alive = f"{creator} is alive"
        if survey.collect(name, header).taken_over:
            alive = f"{creator} is dead, but an importer that came later has taken it over"
        return False, alive + (f", with {counted(peers, 'living peer')}" if peers else "")
    gone = f"{creator} has closed it" if header.closed else f"{creator} is dead"
    if peers:
        return False, f"{gone}, but it has {counted(peers, 'living peer')}"
    if header.on_host and header.attached:
        return False, f"{gone}, but a living process is attached to it"
    ends = "; its durable subscriptions end" if native.has_durable(header) else ""
    return True, f"{gone}, and no living process is in it{ends}"
