"""Whose a ring is, and what is said of those that cannot be read."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Mapping

from gpuring.printable import printable
from gpuring.registry import segment

_MOST_EXPLAINED = 8  # reasons, one line each
_MOST_NAMED = 10  # names in one line


def user(uid: int) -> str:
    """A user's name, or his number if he has no name on this host."""
    try:
        return printable(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)


def myself() -> str:
    return user(os.geteuid())


def owner(name: str) -> str:
    """The user to whom a ring belongs; "?" if it has gone."""
    uid = segment.owner(segment.header_name(name))
    return "?" if uid < 0 else user(uid)


def is_private(name: str) -> bool:
    """Whether another user keeps a ring to himself."""
    path = segment.path_of(segment.header_name(name))
    try:
        found = os.lstat(path)
    except OSError:
        return False
    foreign = stat.S_ISREG(found.st_mode) and found.st_uid != os.geteuid()
    return foreign and not os.access(path, os.R_OK)


def explained(unreadable: Mapping[str, str]) -> list[str]:
    """Why rings cannot be read, in lines.  `unreadable` is what survey.all_rings() says of them."""
    private = [name for name in unreadable if is_private(name)]
    lines = [f"Only their owners and root can read {listed(private)}."] if private else []
    alike: dict[str, list[str]] = {}
    for name in unreadable.keys() - set(private):
        path = segment.path_of(segment.header_name(name))
        alike.setdefault(unreadable[name].replace(path, "this"), []).append(name)
    groups = sorted((sorted(names), why) for why, names in alike.items())
    lines += [
        f"{listed(names)} cannot be read: {printable(why)}"
        for names, why in groups[:_MOST_EXPLAINED]
    ]
    if more := sum(len(names) for names, _ in groups[_MOST_EXPLAINED:]):
        lines.append(f"{more} more cannot be read.")
    return lines


def listed(names: Iterable[str]) -> str:
    """The first names, and how many there are beside."""
    known = [printable(name) for name in names]
    more = len(known) - _MOST_NAMED
    return ", ".join(known[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
