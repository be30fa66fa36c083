"""Say whether anything is stuck, who is to blame, since when, and what to do about it.

It follows the chain of waits over all rings of this host, from the process that waits to the
one that could go on.  The exit status is 1 if something is stuck, and 0 if not.  It is 3 if nothing
was found, but not every ring can be read, or if the ring that was named cannot.  It reads headers
only, and joins nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Iterable, Iterator

from gpuring.cli.options import seconds as seconds_of
from gpuring.cli.owners import explained
from gpuring.cli.text import columns, seconds, wrap
from gpuring.cli.trouble import COULD_NOT_LOOK, CannotLook, message
from gpuring.errors import RingError
from gpuring.printable import command, counted, printable
from gpuring.registry import directory, segment, survey
from gpuring.registry.jams import STUCK_S, Culprit, Jam, all_wait, jams, named
from gpuring.registry.processes import is_stopped, state
from gpuring.registry.stats import RingStats
from gpuring.registry.users import of_former_rings, of_locks
from gpuring.registry.users import told as used_by

_AGAIN_S = 0.05
"""After such a time a second look has to find the same."""
_STACK = "`py-spy dump --pid {pid}` shows where it is"
_GO_ON = "If you end it (`kill {pid}`), {then}"
_ELSEWHERE = (
    " PID is its pid on the host: it is in another pid namespace, such as that of a container, and "
    "`lsns {namespace}` there lists the processes of that one."
)
WORDS = {
    "dead": (
        "{who} is dead, and nobody has cleared what it had in ring {ring}",
        "A living process of the ring clears it, unless a stopped process has the ring's lock. "
        "`gpuring inspect {ring}` shows who is stopped",
    ),
    "stopped": (
        "{who} is stopped, by SIGSTOP, Ctrl-Z or a debugger, and ring {ring} has waited for it "
        "{since}",
        "`kill -CONT {pid}` continues it. If you end it (`kill -KILL {pid}`), {then}",
    ),
    "takes": (
        "{who} has taken nothing from {ring} {since}{doing}",
        f"{_STACK}. {_GO_ON}. A reader that may miss frames can be lossy",
    ),
    "holds": ("{who} has held {seq} of ring {ring} {since}{doing}", f"{_STACK}. {_GO_ON}"),
    "keeps": (
        "{who} has held {seq} of ring {ring} {since}, and asks for the next frame meanwhile",
        f"It may have lost the slot: take each one in a `with` block. {_GO_ON}",
    ),
    "writes": (
        "{who} has claimed {seq} of ring {ring} {since} and not published it{doing}",
        f"It has to publish it or to abandon it. {_STACK}. {_GO_ON}",
    ),
    "answers": (
        "{who} has had a call of service {ring} {since} and not answered it{doing}",
        f"{_STACK}. If you end it (`kill {{pid}}`), another engine gets the call, as soon as there "
        "is one",
    ),
    "reads": (
        "{who} has not read the answers in ring {ring} {since}{doing}",
        f"It has to read them or to cancel its call. {_STACK}. {_GO_ON}",
    ),
    "gpu": (
        "The GPU work of {who} on {seq} of ring {ring} has not finished {since}",
        f"A kernel may run for ever, or wait for another one. {_STACK}. {_GO_ON}",
    ),
    "circle": (
        "{who} have waited for each other {since}",
        "Each has to release what it holds before it waits. If you end one of them, the other one "
        "goes on",
    ),
    "itself": (
        "{who} has waited for itself in ring {ring} {since}",
        "It has to publish or release first, or another thread or process of yours has to read. "
        f"{_STACK}",
    ),
    "far": (
        "The other side of a bridge has taken nothing from subscription '{name}' of ring {ring} "
        "{since}",
        "Run `gpuring why` on that host. If its importer is gone, start it there again: "
        "`{command}`, with PORT and the options as before. Or end its subscription with "
        "`{unsubscribe}`, or wait until the exporter's --patience is over",
    ),
    "no reader": (
        "Subscription '{name}' has no reader, and ring {ring} has waited for one {since}",
        "Start its reader, or end it with `{unsubscribe}`{patience}",
    ),
    "no exporter": (
        "Subscription '{name}' of ring {ring} is that of a bridge. No exporter reads it, and it "
        "has kept the ring waiting {since}",
        "If `gpuring bridge export {ring}` does not run here, start it again, as before. If it "
        "runs, it waits for its importer: start that on the other host with `{command}`, with PORT "
        "and the options as before. Or end the subscription with `{unsubscribe}`{patience}",
    ),
    "no session": (
        "The bridge that fills ring {ring} has had no connection to the other host {since}",
        "Look whether `gpuring bridge export` runs there, and whether the network carries it. The "
        "log of `gpuring bridge import` here says what it meets. It connects again by itself",
    ),
    "no producer": (
        "Ring {ring} has no producer, and readers have waited {since}",
        "Start a producer",
    ),
    "no near producer": (
        "A bridge brings ring {origin} into ring {ring}. No producer is left there, and readers "
        "have waited {since}",
        "Start a producer of ring {origin}. The bridge goes on by itself then",
    ),
    "no engine": (
        "Service {ring} has no engine, and clients have waited {since}",
        "Start an engine",
    ),
    "no creator": (
        "The process that created ring {ring} is dead, the ring has no producer, and readers have "
        "waited {since}",
        "{again}. Readers with `reattach=True` go on then, and all others have to be started again"
        "{exists}",
    ),
    "dead ring": (
        "All processes of ring {ring} are dead, and nothing has happened there {since}",
        "{again}. If it fails because the ring exists, or if nobody needs the ring any more, "
        "{clean} removes what is left of it",
    ),
    "dead rings": (
        "All processes of these rings are dead, and nothing has happened there {since}",
        "Restart the program that created them. If it fails because a ring exists, or if nobody "
        "needs the rings any more, {clean} removes what is left of them",
    ),
}
"""For each reason: who is to blame, and what to do."""
_STATE = {"dead ring": "is dead", "dead rings": "are dead"}
"""What a ring is that is not stuck."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="only what touches this ring or service")
    parser.add_argument(
        "--after",
        type=seconds_of,
        default=STUCK_S,
        metavar="S",
        help="it is stuck if nothing has moved for S seconds (default: 2); take more than the "
        "slowest reader holds a frame",
    )
    parser.add_argument("--json", action="store_true", help="print everything known, as JSON")


def run(args: argparse.Namespace) -> int:
    try:
        if args.name is not None:
            _check(segment.check_name(args.name))
        rings, unreadable = survey.all_rings()
    except PermissionError as error:
        raise CannotLook(message(error, ())) from None
    found = jams(rings, args.after, args.name)
    if found:  # what moves may have looked like this: headers are read one after the other
        time.sleep(_AGAIN_S)
        before = {_where(jam) for jam in found}
        again = jams(survey.ls(), args.after, args.name)
        found = [jam for jam in again if _where(jam) in before]
    locked = _of_locks(args.name)
    if args.json:
        print(json.dumps([dataclasses.asdict(jam) for jam in found], indent=2))
    elif found:
        together = _by_creator(found, rings)
        print("\n\n".join(told(jam, columns()) for jam in together))
    elif not locked:
        print(wrap(_nothing(args, len(rings), len(unreadable)), columns(), "  "))
    if not args.json:
        # what the unreadable ones keep waiting cannot be seen
        lines = (*locked, *_of_closed(rings, args.name), *_of_former(args.name))
        for line in (*lines, *explained(unreadable)):
            print(wrap(line, columns(), "  "))
    if found or locked:
        return 1
    return COULD_NOT_LOOK if unreadable and args.name is None else 0


def _check(name: str) -> None:
    """Raises CannotLook unless there is a ring of this name that can be read."""
    try:
        directory.look(name)
    except (RingError, OSError) as error:
        raise CannotLook(". ".join([message(error, ()), *_of_former(name)])) from None


def _of_locks(name: str | None) -> list[str]:
    """Who was stopped while it joined or left a ring, so that nobody else can do so."""
    return [
        f"Nobody can join or leave ring {each}: {used_by(users)} is stopped and has its membership "
        f"lock. {_advice(users)}"
        for each, users in of_locks().items()
        if name in (None, each)
    ]


def _of_closed(rings: Iterable[RingStats], name: str | None) -> list[str]:
    """Who waits for the next ring of a name: in rings that were closed and have it still."""
    waiting = {
        one.name: [peer for peer in one.peers if peer.waiting and peer.role == "consumer"]
        for one in rings
        if one.closed and name in (None, one.name)
    }
    return [
        f"{all_wait(peers)} for the next ring {each}. The last one was closed."
        for each, peers in waiting.items()
        if peers
    ]


def _of_former(name: str | None) -> list[str]:
    """Who still uses a ring that has lost its name, and may wait for the next one."""
    return [
        f"Ring {each} was closed, removed or replaced. It is still used by {used_by(users)}. "
        + _advice(users)
        for each, users in of_former_rings().items()
        if name in (None, each)
    ]


def _advice(users: Iterable[int]) -> str:
    if stopped := [str(pid) for pid in users if is_stopped(pid)]:
        return f"`{command('kill', '-CONT', *stopped)}` continues what is stopped."
    return "A reader with `reattach=True` waits for the next ring of that name."


def _nothing(args: argparse.Namespace, readable: int, unreadable: int) -> str:
    since = f"for {seconds(args.after)} or longer"
    if args.name is not None:
        return f"Nothing in {args.name} has been stuck {since}."
    if not unreadable:
        return f"Nothing on this host has been stuck {since}."
    rings = f"the {counted(readable, 'ring')} that can be read here"
    return f"Nothing has been stuck {since} in {rings}. {unreadable} more cannot be read."


def _where(jam: Jam) -> object:
    return tuple(
        (step.ring, step.wants, step.seq, *[peer.number for peer in step.by][:1])
        for step in jam.steps
    )


def _by_creator(found: Iterable[Jam], rings: Iterable[RingStats]) -> Iterator[Jam]:
    """One jam for all dead rings of one creator.  All others stay as they are."""
    # Not those of other pid namespaces: each may have a pid 1.  Another user's process may have had
    # the same pid later.
    creators = {
        one.name: (one.creator_pid, segment.owner(segment.header_name(one.name)))
        for one in rings
        if not one.creator_elsewhere
    }
    alike: dict[object, list[Jam]] = {}
    for jam in found:
        end = jam.culprits[0]
        is_alone = end.reason != "dead ring" or end.command is not None or len(jam.steps) > 1
        key = jam if is_alone else creators.get(end.ring, jam)
        alike.setdefault(key, []).append(jam)
    for first, *others in alike.values():
        if others:
            steps = tuple(step for jam in (first, *others) for step in jam.steps)
            names = ", ".join(step.ring for step in steps)
            age_s = min(step.age_s for step in steps)
            end = Culprit("dead rings", names, None, None, (), age_s)
            yield Jam(steps, (end,))
        else:
            yield first


def told(jam: Jam, width: int | None = None) -> str:
    """A jam in sentences: who, since when, the waits one after the other, and what to do."""
    first = jam.culprits[0]
    ring = first.ring if first.reason in _STATE else jam.steps[0].ring
    stuck = f"{ring} {_STATE.get(first.reason, 'is stuck')}. {blamed(first)}"
    lines = [wrap(stuck, width, "  "), chain(jam, width)]
    if len(jam.culprits) > 1:
        lines.append("  It is not the only one:")
        lines += [wrap(f"  - {blamed(each)}", width, "    ") for each in jam.culprits[1:]]
    if others := [*map(named, jam.others), *jam.also]:
        wait = "waits" if len(others) == 1 else "wait"
        lines.append(wrap(f"{', '.join(others)} {wait} for it as well.", width, "  "))
    lines.append(wrap(f"What to do: {advice(first)}", width, "  "))
    return "\n".join(lines)


def chain(jam: Jam, width: int | None = None) -> str:
    """The waits, one after the other."""
    return "\n".join(
        wrap(f"  {n}. {step.why}.", width, "     ") for n, step in enumerate(jam.steps, 1)
    )


def brief(jam: Jam) -> str:
    """The chain in a line: who waits for what ← whose move it is ← for what that one waits …"""
    first = jam.steps[0]
    if first.wants == "life":
        return f"{first.ring} is dead"
    begin = f"{all_wait(first.waiting) if first.waiting else 'Somebody waits'} for"
    if first.wants == "slot" and not first.waiting:  # they drop frames, or have none just then
        begin = "No slot is free in"
    parts = []
    for step in jam.steps:
        parts.append(f"GPU work in {step.ring}" if step.wants == "gpu" else step.ring)
        parts += [f"subscription {printable(step.subscription)}"] if step.subscription else []
        parts += [named(peer) for peer in step.by[:1]]
    return f"{begin} {' ← '.join(parts)}"


def blamed(end: Culprit) -> str:
    """Who it is, and since when."""
    return f"{_filled(WORDS[end.reason][0], end)}."


def advice(end: Culprit) -> str:
    """What ends the jam."""
    words = WORDS[end.reason][1]
    lines = [f"{_filled(words, end)}."]
    if "{pid}" in words:
        unseen = {peer.namespace for peer in end.peers if peer.pid_here is None}
        lines += [_ELSEWHERE.format(namespace=each) for each in sorted(unseen)]
    return "".join(lines)


def _filled(words: str, end: Culprit) -> str:
    return words.format(
        who=" and ".join(map(named, end.peers)),
        since=f"for {seconds(end.age_s)}",
        seq=f"sequence {end.seq}",
        ring=end.ring,
        name=printable(end.subscription or ""),
        unsubscribe=command("gpuring", "unsubscribe", names=(end.ring, end.subscription or "")),
        pid=" ".join(str(peer.pid_here or "PID") for peer in end.peers),
        patience=""
        if end.patience_s is None
        else f". Producers go on by themselves in {seconds(end.patience_s)}",
        doing=_doing(end),
        then=_then(end),
        origin=end.origin,
        clean=_cleaning(end.ring),
        command=end.command,
        again="Restart the program that created it"
        if end.command is None
        else f"Start `{end.command}` again, with PORT and the options as before",
        exists=f". If it fails because the ring exists, end the readers first, and remove the ring "
        f"with {_cleaning(end.ring)}"
        if end.command is None
        else "",
    )


def _cleaning(rings: str) -> str:
    """Only the owner of a ring can remove it, so root types another command for it."""
    names = rings.split(", ")
    uid = segment.owner(segment.header_name(names[0]))
    if os.geteuid() == 0 < uid:
        return segment.as_user(uid, f"clean {' '.join(names)}")
    return f"`{command('gpuring', 'clean', *names)}`"


def _then(end: Culprit) -> str:
    """What happens if its process is ended."""
    if end.durable:
        name = printable(end.subscription or "")
        wait = "wait" if end.patience_s is None else f"wait for up to {seconds(end.patience_s)}"
        return f"producers {wait} for the next reader of subscription '{name}'"
    if not end.alone:
        return "the others go on without it"
    if end.peers[0].role == "consumer":
        return f"clients wait until service {end.ring} has another engine"
    return f"readers wait until ring {end.ring} has another producer"


def _doing(end: Culprit) -> str:
    """What a process does now that waits for nobody in a ring, where that can be seen."""
    if end.peers and (pid := end.peers[0].pid_here) is not None:
        doing = {"R": ". It computes now", "S": ". It sleeps, and not in a ring"}
        return doing.get(state(pid), "")
    return ""
