"""Whether a service can be asked: what a load balancer wants to know.  It reads headers only: that
of the service, and where no engine is ready those of other rings, for which one may wait."""

from __future__ import annotations

from dataclasses import dataclass

from gpuring.errors import RingIncompatible
from gpuring.native import seconds
from gpuring.printable import counted, printable
from gpuring.registry import directory, segment, survey
from gpuring.registry.jams import STUCK_S, jams
from gpuring.registry.stats import InTheWay, PeerStats, RingStats
from gpuring.service.wire import ENGINES
from gpuring.slot_layout import Spec


@dataclass(frozen=True)
class Health:
    """One look at a service."""

    name: str
    """The name of the service."""
    ok: bool
    """Whether it can be asked: it is open, an engine is ready, and its ring is not full because of
    an engine that is not."""
    why: str
    """The same in a line, for people."""
    ready: int
    """How many engines are ready: each of them lives, is not stopped, and has waited for calls or
    taken some not long ago."""
    engines: int
    """How many engines have joined.  Those that warm up count.  A process that only holds the
    service open does not."""
    waiting: int
    """How many calls no engine has taken yet."""
    oldest_s: float
    """For how many seconds the oldest of these has waited.  0 if there is none."""


def health(name: str, within_s: float = 10.0, after_s: float = STUCK_S) -> Health:
    """Looks whether the service `name` can be asked.  It joins nothing, and needs no GPU.

    An engine is ready if it has waited for calls, or taken some, within the last `within_s`
    seconds.  So an engine that warms up is not ready yet, and an engine that hangs is not ready any
    more.  Let `within_s` be at least 2 seconds, and longer than the longest batch takes.

    An engine that is not ready may have the oldest call of a full ring.  Then no client can send a
    request, and `ok` is False, also if other engines are ready.

    `why` names each engine that is not ready.  It also names one that has had a call for `after_s`
    seconds and has not sent a part of the answer meanwhile.  That one may hang, and counts as ready
    until `within_s` is over.

    Raises RingNotFound, RingIncompatible if the ring is not a service, TypeError, ValueError.
    """
    within_s, after_s = seconds(within_s, "within_s"), seconds(after_s, "after_s")
    header = directory.look(segment.check_name(name))
    try:
        about = Spec.from_bytes(header.spec).about or {}
    except ValueError as error:
        raise RingIncompatible(f"ring {name!r}: {error}") from error
    if "service" not in about:
        raise RingIncompatible(
            f"ring {name!r} is a ring, not a service: `gpuring why {name}` says whether it is stuck"
        )
    seen = survey.collect(name, header)
    keeper = seen.creator_pid if about.get("kept") else None
    engines = {
        peer: _trouble(peer, within_s)
        for peer in seen.peers
        if peer.subscription == ENGINES and (peer.pid != keeper or peer.asked_s is not None)
    }
    ready = sum(not trouble for trouble in engines.values())
    calls = next((sub for sub in seen.subscriptions if sub.name == ENGINES), None)
    waiting, oldest_s = (calls.untaken, calls.oldest_s) if calls else (0, 0.0)
    shut = _keeps_it_full(seen, [peer for peer, trouble in engines.items() if trouble])
    if seen.closed:
        why = "it was closed"
    elif not engines:
        why = "it has no engine"
    else:
        told = [
            f"the engine {printable(peer.label)} (pid {peer.pid}) {trouble}"
            for peer, trouble in engines.items()
            if trouble
        ]
        told = [f"{ready} of {counted(len(engines), 'engine')} ready", *told] if ready else told
        had_s = max((hold.age_s for peer in engines for hold in peer.holding), default=0.0)
        told += [f"no request can be sent: {shut.why}"] if shut else []
        if not ready or had_s >= after_s:
            told += _stuck(name, after_s if ready else 0.0, shut.seq if shut else None)
        why = "; ".join(dict.fromkeys(told))
    if waiting:
        queue = "1 call waits" if waiting == 1 else f"{waiting} calls wait, the oldest"
        why += f"; {queue} for {oldest_s:.3g} s"
    ok = ready > 0 and not seen.closed and not shut
    return Health(name, ok, why, ready, len(engines), waiting, oldest_s)


def _keeps_it_full(service: RingStats, engines: list[PeerStats]) -> InTheWay | None:
    """Which of these engines has the call whose slot the next request would get."""
    way = service.in_the_way
    held = {hold.seq for engine in engines for hold in engine.holding}
    return way if way is not None and way.seq in held else None


def _stuck(name: str, after_s: float, told_seq: int | None) -> list[str]:
    """Which engine has had a call for how long, for what it waits in other rings, and what ends
    that.  Not that nobody takes calls, which their number says, nor of the call `told_seq`."""
    try:
        found = jams(survey.ls(), after_s, name)
    except PermissionError:  # no other ring can be found
        return []
    steps = [step for jam in found for step in jam.steps]
    told = [step.why for step in steps if step.ring != name or step.seq not in (None, told_seq)]
    ends = (end.command for jam in found for end in jam.culprits)
    return told + [f"start `{command}` again" for command in ends if command]


def _trouble(engine: PeerStats, within_s: float) -> str:
    """Why an engine is not ready; "" if it is."""
    if not engine.alive:
        return "is dead"
    if engine.stopped:
        return "is stopped"
    if engine.asked_s is None:
        return "has not asked for a call yet"
    idle_s = min([engine.asked_s, *(hold.age_s for hold in engine.holding)])
    if idle_s > within_s and not engine.waiting:
        return f"has not asked for a call for {idle_s:.3g} s"
    return ""
