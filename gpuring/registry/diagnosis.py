"""The errors of refused verbs.  Each names the ring, the numbers, the culprit and the next step.

The words are those of the C library (native/host/diagnosis.c, in_the_way.c), here and in what the
commands print.  This module adds what only Python knows: which process was stopped a moment ago,
and waits of a process for itself.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from gpuring import native, slot_layout
from gpuring.errors import FrameTorn, RingError, TooManyPeers
from gpuring.native import Header, Peer, diagnosis
from gpuring.native.diagnosis import in_the_way, resting, unusable, way_out
from gpuring.printable import printable
from gpuring.registry.subscriptions import is_unnamed, text_of

__all__ = [
    "ONLY_END", "Culprit", "blocking_subscription", "cannot_join", "culprit", "in_the_way",
    "is_alone", "is_service", "only_engines_read",
    "refused", "resting", "torn", "unusable", "waiting_for_itself", "waits_for_itself",
    "way_out", "whose",
]  # fmt: skip

_POLLED_S = 0.02
"""For how long an answer of /proc is used again.  So a caller that polls does not read /proc each
time."""
_MAX_LOOKS = 1000

Culprit = tuple[int, "int | None", "int | None", int, int]
"""As Peer.culprit: a reason of native, a peer, a subscription, a sequence, and since when."""

ONLY_END: list[Any] = [signal.default_int_handler]
"""Handlers of signals that end the program, and give nothing back before."""

_stopped: dict[tuple[bytes, int, int], tuple[float, bool]] = {}
"""Whether a peer was stopped, and when that was looked up, by its ring, number and process."""


def refused(ring: str, peer: Peer, result: int, *, verb: str, timeout: float | None) -> RingError:
    """The error for the negative `result` of a frame verb."""
    if result == native.TORN:
        return torn(ring, peer.take_torn(), released=True)
    is_stopped = partial(_is_stopped, peer.header, at_most_s_old=0.0 if timeout else _POLLED_S)
    return diagnosis.refused(ring, peer, result, verb, timeout, is_stopped)


def cannot_join(
    ring: str, header: Header, result: int, subscription: bytes
) -> RingError | ValueError:
    """The error for the negative `result` of a join."""
    if result == native.FULL_SUBSCRIPTIONS and is_service(header):
        return only_engines_read(ring)
    return diagnosis.cannot_join(ring, header, result, subscription)


def is_service(header: Header) -> bool:
    """Whether it is the ring of requests of a service."""
    return "service" in (slot_layout.about(header.spec) or {})


def only_engines_read(service: str) -> TooManyPeers:
    """The error for who wants to read the requests of a service."""
    return TooManyPeers(
        f"{service!r} is a service, and no ring: only its engines read its requests. So it can be "
        f"neither tapped nor recorded nor exported. `gpuring inspect {service}` shows who is in it"
    )


def torn(ring: str, seqs: Iterable[int], *, released: bool = False) -> FrameTorn:
    """The error for torn frames.  `released` says that they turned out torn after their release."""
    told = tuple(seqs)
    return FrameTorn(diagnosis.torn(ring, told, released), told)


def _is_stopped(header: Header, number: int, at_most_s_old: float = 0.0) -> bool:
    """Whether a peer's process is stopped, or was so long ago."""
    who = header.epoch, number, header.peer_pid(number)
    looked_s, stopped = _stopped.get(who, (0.0, False))
    now_s = time.monotonic()
    if now_s - looked_s >= at_most_s_old:
        if len(_stopped) > _MAX_LOOKS:
            _stopped.clear()
        stopped = header.is_stopped(number)
        _stopped[who] = now_s, stopped
    return stopped


def culprit(peer: Peer) -> str:
    """What blocks the peer, in words, and whose process is stopped."""
    return in_the_way(peer.header, peer.culprit, partial(_is_stopped, peer.header))


def whose(label: bytes | str, pid: int | str) -> str:
    """A peer's label and process: "recorder.py, pid 4711"."""
    shown = printable(label if isinstance(label, str) else text_of(label))
    return f"{f'{shown}, ' if shown else ''}pid {pid}"


def blocking_subscription(peer: Peer) -> str:
    """The name of the subscription that blocks the peer.  Empty: it is something else."""
    subscription = peer.culprit[2]
    if subscription is None:
        return ""
    return text_of(peer.header.subscription_name(subscription))


def waits_for_itself(peer: Peer) -> bool:
    """Whether only the calling thread can end what blocks the peer, as far as can be seen here.

    That is so if peers of this process have what it waits for, no other process can take it from
    them, and this process has no other thread and no signal handler that might give it back.  The
    callback of a native thread, which might do so as well, cannot be seen before it runs
    (docs/decisions/0016-a-wait-for-oneself.md).
    """
    reason, other, subscription, _, _ = peer.culprit
    header = peer.header
    if reason in (native.BY_PRODUCER, native.BY_HOLDER):
        in_the_way = [] if other is None else [other]
    elif reason == native.BY_SUBSCRIPTION and subscription is not None:
        if not is_unnamed(text_of(header.subscription_name(subscription))):
            return False  # another process may join it
        in_the_way = header.members(subscription)
    else:
        return False
    return bool(in_the_way) and all(map(header.is_own, in_the_way)) and is_alone()


def is_alone() -> bool:
    """Whether no other Python code of this process can run while the calling thread waits."""
    return len(sys._current_frames()) == 1 and not _handles_signals()


def waiting_for_itself(ring: str, peer: Peer) -> str:
    """The words for such a wait."""
    return (
        f"ring {ring!r}: this wait may never end: {culprit(peer)}. It has no timeout, and this "
        "process has no other thread of Python that could end it. Publish or release first, or "
        "read in another process. The wait goes on, for the callback of a native thread may end it"
    )


def _handles_signals() -> bool:
    handlers = map(signal.getsignal, signal.valid_signals())
    return any(callable(each) and each not in ONLY_END for each in handlers)
