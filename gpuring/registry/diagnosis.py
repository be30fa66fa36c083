"""The errors of refused verbs.  Each names the ring, the numbers, the culprit and the next step.

`in_the_way` has the words for who keeps a verb waiting, here and in what the commands print.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable

from gpuring import native
from gpuring.errors import (
    EndOfStream,
    FrameTorn,
    PeerLost,
    ProducerDied,
    RingClosed,
    RingError,
    RingFull,
    RingIncompatible,
    RingTimeout,
    TooManyPeers,
)
from gpuring.native import Header, Peer
from gpuring.printable import printable
from gpuring.registry import segment
from gpuring.registry.subscriptions import is_read_elsewhere, is_unnamed, text_of

_MAX_RANGES = 5
_POLLED_S = 0.02
"""Who polls does not have /proc read for each time.  What was read is good for so long."""
_MAX_LOOKS = 1000

Culprit = tuple[int, "int | None", "int | None", int, int]
"""As Peer.culprit: a reason of native, a peer, a subscription, a sequence, and since when."""

_stopped: dict[tuple[bytes, int, int], tuple[float, bool]] = {}
"""Whether a peer was stopped, and when that was looked up, by its ring, number and process."""


def refused(ring: str, peer: Peer, result: int, *, verb: str, timeout: float | None) -> RingError:
    """The error for the negative `result` of a frame verb."""
    if result == native.BLOCKED:
        kind = RingFull if verb == "claim" else RingTimeout
        waited = "" if timeout is None else f"within {float(timeout):g} s" if timeout else "at once"
        why = culprit(peer, at_most_s_old=0.0 if timeout else _POLLED_S)
        return kind(f"ring {ring!r}: no {_wanted(verb)}{' ' if waited else ''}{waited}: {why}")
    if result == native.CLOSED:
        return RingClosed(f"ring {ring!r}: {_over(result)}. {_how_to_follow(ring, peer.header)}")
    if result == native.ENDED:
        return EndOfStream(f"ring {ring!r}: {_over(result)}. {_how_to_follow(ring, peer.header)}")
    if result == native.PEER_LOST:
        return PeerLost(f"ring {ring!r}: {_over(result)}. {_how_to_follow(ring, peer.header)}")
    if result == native.PRODUCER_DIED:
        return ProducerDied(
            f"ring {ring!r}: {_dead_producers(peer)} died, and the stream goes on with the others. "
            "What it had published is still read"
        )
    if result == native.TORN:
        return torn(ring, peer.take_torn(), released=True)
    if result == native.REAPED:
        return PeerLost(
            f"ring {ring!r}: this peer was taken for dead and its claims were cleared, or it was "
            "closed. Join again"
        )
    return unusable(ring, result)


def _dead_producers(peer: Peer) -> str:
    """Of whose death a consumer is told.  Only the last deaths of a ring are remembered."""
    told = [
        f"producer {dead['number']} ({whose(dead['label'], dead['pid'])})"
        for dead in reversed(peer.header.deaths(peer.told_from))
        if dead["role"] == "producer" and not dead["leaving"]
    ]
    return " and ".join(told) or "a producer"


def resting(
    ring: str, header: Header, result: int, *, verb: str, timeout: float | None
) -> RingTimeout:
    """The error of a verb of a peer that waits its end out, and whose time is up."""
    kind = RingFull if verb == "claim" else RingTimeout
    waited = "at once" if not timeout else f"within {float(timeout):g} s"
    others = " and no other ring has its name yet" if header.closed else ""
    return kind(
        f"ring {ring!r}: no {_wanted(verb)} {waited}: {_over(result)}{others}. Call again to go on "
        "waiting"
    )


def _over(result: int) -> str:
    """What has come to its end, in words."""
    if result == native.CLOSED:
        return "it was closed, so no frames can be claimed any more"
    if result == native.PEER_LOST:
        return "everything was read, no producer is left, and one of them died"
    return "everything was read and no producer is left"


def _how_to_follow(ring: str, header: Header) -> str:
    """What a program can do at the end of a stream to go on."""
    if segment.is_replaced(ring, header.lock_fd):
        return (
            "Another ring has that name now. Attach again to go on there, or join with "
            "reattach=True, which does so by itself"
        )
    if header.closed:
        return (
            f"gpuring.attach({ring!r}, timeout=…) waits for the next ring of that name, and who "
            "has joined with reattach=True goes on there by itself"
        )
    return (
        "A new producer starts the stream again. A consumer that has joined with reattach=True "
        "waits for one, or for the next ring of that name"
    )


def torn(ring: str, seqs: Iterable[int], *, released: bool = False) -> FrameTorn:
    """The error for torn frames.  `released` says that they turned out torn after their release."""
    told = tuple(seqs)
    one = len(told) == 1
    frames = spans(told)
    if released:
        frames += ", which this consumer has released,"
    elif frames.endswith(" of them"):
        frames += ","
    return FrameTorn(
        f"ring {ring!r}: {frames} {'is' if one else 'are'} torn: the producer died before the GPU "
        f"had written {'it' if one else 'them'}. Discard what was computed from "
        f"{'it' if one else 'them'}{'; the consumer can go on' if released else ''}",
        told,
    )


def spans(seqs: Collection[int]) -> str:
    """Frames in words: "sequence 5", "sequences 5, 6, 9", "sequences 6–1021, 1,016 of them".  Of
    many ranges it names the first."""
    ranges: list[list[int]] = []
    for seq in sorted(seqs):
        if ranges and seq <= ranges[-1][1] + 1:
            ranges[-1][1] = seq
        else:
            ranges.append([seq, seq])
    shown = ranges[:_MAX_RANGES]
    words = [f"{first}–{last}" if last > first else str(first) for first, last in shown]
    more = sum(seq > shown[-1][1] for seq in seqs) if shown else 0
    noun = "sequence" if len(seqs) == 1 else "sequences"
    text = f"{noun} {', '.join(words)}{f' and {more:,} more' if more else ''}"
    return f"{text}, {len(seqs):,} of them" if len(words) < len(seqs) else text


def unusable(ring: str, result: int) -> RingError:
    """The error for a negative result that any call may return."""
    if result == native.FORKED:
        return RingError(
            f"ring {ring!r}: this handle was made before fork() and belongs to the parent. Attach "
            "in the child (gpuring.attach), or start processes with the 'spawn' method; on a GPU "
            "ring only 'spawn' works, since CUDA cannot be used after fork()"
        )
    if result == native.LOCK_TIMEOUT:
        return RingTimeout(
            f"ring {ring!r}: another process has held the membership lock for 5 s. Is one of its "
            "processes stopped (SIGSTOP, a debugger)? `gpuring inspect` lists them"
        )
    if result == native.CLOSED:
        return RingClosed(
            f"ring {ring!r} was closed by its creator, or because another ring took its name: "
            "nobody can join it any more. Close this handle and attach again: "
            f"gpuring.attach({ring!r}, timeout=…) waits for the ring that has the name next"
        )
    if result == native.DAMAGED:
        return RingIncompatible(f"ring {ring!r}: its header holds what no gpuring writes")
    return RingError(f"ring {ring!r}: unexpected result {result}")


def cannot_join(
    ring: str, header: Header, result: int, subscription: str
) -> RingError | ValueError:
    """The error for the negative result of a join."""
    if result == native.FULL_PEERS:
        return TooManyPeers(
            f"ring {ring!r}: all {header.max_peers} entries of its peer table are taken by living "
            "peers (`gpuring inspect` lists them); create it with a larger max_peers "
            f"(at most {native.MAX_PEERS})"
        )
    if result == native.FULL_SUBSCRIPTIONS:
        return TooManyPeers(
            f"ring {ring!r}: all {header.max_subscriptions} subscriptions are in use; create it "
            f"with a larger max_subscriptions (at most {native.MAX_SUBSCRIPTIONS})"
        )
    if result == native.MODE_MISMATCH:
        return ValueError(
            f"ring {ring!r}: subscription {subscription!r} exists with other values of lossless= "
            "or redeliver=; members of one subscription must agree"
        )
    return unusable(ring, result)


def _is_stopped(header: Header, number: int, at_most_s_old: float) -> bool:
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


def culprit(peer: Peer, at_most_s_old: float = 0.0) -> str:
    """What blocks the peer, in words, and whose process is stopped, or was so long ago."""
    header = peer.header
    return in_the_way(
        header, peer.culprit, lambda number: _is_stopped(header, number, at_most_s_old)
    )


def in_the_way(header: Header, culprit: Culprit, is_stopped: Callable[[int], bool]) -> str:
    """Who is in the way of a verb, in words: who it is, which sequence it is about, and since
    when."""
    reason, other, subscription, seq, since_ns = culprit

    def peer(number: int) -> str:
        return _named(header, number, "peer", ", stopped" if is_stopped(number) else "")

    where = elsewhere = ""
    if subscription is not None:
        name = text_of(header.subscription_name(subscription))
        where = f"subscription {name!r}"
        if is_read_elsewhere(name):
            elsewhere = _elsewhere(header.far(subscription))
    who = "a peer" if other is None else peer(other)
    for_s = f" for {max(0, native.now_ns() - since_ns) / 1e9:.3f} s" if since_ns else ""
    if reason == native.BY_PRODUCER:
        return f"{who} is writing sequence {seq}{for_s}"
    if reason == native.BY_HOLDER:
        return f"{who} of {where} holds sequence {seq}{for_s}{elsewhere}"
    if reason == native.BY_SUBSCRIPTION:
        members = header.members(subscription) if subscription is not None else []
        each = ", ".join(map(peer, members)) or "none"
        ago = for_s.removeprefix(" for")
        taken = f"has not taken sequence {seq}, published{ago} ago (its members: {each})"
        return f"{where} {taken}{elsewhere}{_of_the_end(header, subscription)}"
    if reason == native.BY_FENCE:
        return f"the GPU work of {who} on the slot of sequence {seq} is not finished"
    asleep = [
        f". {_named(header, number, 'Producer')} is stopped"
        for number in header.producers()
        if is_stopped(number)
    ]
    return f"sequence {seq} has not been published yet{''.join(asleep)}"


def _named(header: Header, number: int, noun: str, state: str = "") -> str:
    """A peer in words: "peer 3 (recorder.py, pid 4711, stopped)"."""
    own = " of this process" if header.is_own(number) else ""
    where = " of another pid namespace" if header.in_other_namespace(number) else ""
    who = whose(header.label(number), header.peer_pid(number))
    return f"{noun} {number}{own} ({who}{where}{state})"


def whose(label: bytes | str, pid: int) -> str:
    """A peer's label and process: "recorder.py, pid 4711"."""
    shown = printable(label if isinstance(label, str) else text_of(label))
    return f"{f'{shown}, ' if shown else ''}pid {pid}"


def _of_the_end(header: Header, subscription: int | None) -> str:
    """Why nobody of a subscription may ever take its next frame.  Empty: somebody may."""
    if subscription is None:
        return ""
    patience = header.patience(subscription)
    if patience is not None and not header.members(subscription):
        return (
            ". It is durable, and nobody reads it. Start its reader, or end it with `gpuring "
            "unsubscribe`"
        )
    if not header.waits_in_vain_for(subscription):
        return ""
    return (
        ". Each of them was told that the stream is over, and has asked for nothing since. If "
        "several producers make the stream, say how many: create(…, producers=2). A consumer with "
        "reattach=True waits for the next one"
    )


def _elsewhere(far: bytes) -> str:
    """Who holds up a subscription whose frames go to another host.  Its member here is seldom to
    blame."""
    if far:
        return (
            f". On that host subscription {text_of(far)!r} holds up its ring: `gpuring inspect` "
            "there shows its members. Make them faster, or import with --lossy or --latest"
        )
    return (
        ". On that host `gpuring inspect` says who holds up its ring. If its importer is silent, "
        "the log of the exporter says so: start `gpuring bridge import` again there, or wait "
        "until the exporter's --patience is over"
    )


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
    return (
        bool(in_the_way)
        and all(map(header.is_own, in_the_way))
        and len(sys._current_frames()) == 1
        and not _handles_signals()
    )


def waiting_for_itself(ring: str, peer: Peer) -> str:
    """Of such a wait, in words."""
    return (
        f"ring {ring!r}: this wait may never end: {culprit(peer)}. It has no timeout, and this "
        "process has no other thread of Python that could end it. Publish or release first, or "
        "read in another process. The wait goes on, for the callback of a native thread may end it"
    )


def _handles_signals() -> bool:
    handlers = map(signal.getsignal, signal.valid_signals())
    return any(callable(each) and each is not signal.default_int_handler for each in handlers)


def _wanted(verb: str) -> str:
    return {"claim": "free slot", "acquire": "frame", "latest": "new frame"}[verb]
