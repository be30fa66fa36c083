"""Puts traces of several hosts on one time line, that of the first one.

A trace of the far ring of a bridge has measurements of the near host's clock (hosts.py), and the
epoch of the near ring, by which the trace of that is found.  All times of a host are moved by the
same amount, so what lies between two of them stays as it is.  The clocks drift, so the error that
is stated is the largest one within the trace.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from gpuring.registry.stats import Clock
from gpuring.registry.subscriptions import read_elsewhere
from gpuring.tracing import hosts
from gpuring.tracing.perfetto import described, write_packets
from gpuring.tracing.tracks import Args, Picture

_Event = protos.TrackEvent
_ONE = 1 << 32
"""Tracks and arrows of a trace have numbers below that."""


class JoinError(ValueError):
    """These traces cannot be joined."""


@dataclass(eq=False)
class HostTrace:
    """The trace of one host, as it is in its file."""

    path: Path
    packets: list[Any]
    host: str = ""
    rings: dict[str, str] = field(default_factory=dict)
    """Their names, by their epochs."""
    clocks: list[tuple[str, Clock]] = field(default_factory=list)
    """The clocks of hosts from which bridges bring frames, each with the epoch of the ring
    there."""
    begin_ns: int = 0
    end_ns: int = 0
    shift_ns: int = 0
    """What is added to its times."""
    error_ns: int = 0
    """How far that may be off."""


@dataclass(frozen=True)
class Way:
    """What one bridge has carried between two of the hosts."""

    title: str
    frames: int
    median_s: float
    """From when the exporter takes a frame until it is published in the far ring."""
    error_s: float


def read(path: Path) -> HostTrace:
    """Raises JoinError, OSError."""
    try:
        packets = list(protos.Trace.FromString(path.read_bytes()).packet)
    except DecodeError:
        packets = []
    trace = HostTrace(path, packets)
    for packet in _events(trace):
        if packet.track_event.type == _Event.TYPE_INSTANT:
            _read_fact(trace, packet)
    is_joined = any(packet.track_descriptor.uuid >= _ONE for packet in packets)
    if is_joined or not trace.rings:
        raise JoinError(f"{path} is not a trace of one host that this version of gpuring has made")
    times = [packet.timestamp for packet in _events(trace)]
    trace.begin_ns, trace.end_ns = min(times), max(times)
    return trace


def _read_fact(trace: HostTrace, packet: Any) -> None:
    name = packet.track_event.name
    if name == hosts.BEGINS:
        args = _args(packet)
        trace.host = str(args["host"])
        trace.rings[str(args["epoch"])] = str(args["ring"])
    elif name == hosts.CLOCK:
        args = _args(packet)
        clock = Clock(*(int(args[each]) for each in ("ahead_ns", "error_ns", "measured_ns")))
        trace.clocks.append((str(args["near epoch"]), clock))


def _events(trace: HostTrace) -> Iterator[Any]:
    return (packet for packet in trace.packets if packet.HasField("track_event"))


def _args(packet: Any) -> Args:
    return {
        each.name: each.int_value if each.HasField("int_value") else each.string_value
        for each in packet.track_event.debug_annotations
    }


# ---- one time line -------------------------------------------------------------------------------


def align(traces: Sequence[HostTrace]) -> None:
    """Says how far each trace is moved onto the time line of the first one, over the bridges with
    the least error.  Raises JoinError."""
    placed, others = [traces[0]], list(traces[1:])
    while others:
        found = [
            (error_ns, shift_ns, k)
            for k, other in enumerate(others)
            for to in placed
            for shift_ns, error_ns in _shifts(to, other)
        ]
        if not found:
            names = ", ".join(str(each.path) for each in others)
            raise JoinError(
                f"no bridge says how the clocks of {traces[0].path} and {names} differ. Trace "
                "both rings of a bridge at the same time, each on its own host"
            )
        error_ns, shift_ns, k = min(found)
        other = others.pop(k)
        other.shift_ns, other.error_ns = shift_ns, error_ns
        placed.append(other)


def _shifts(to: HostTrace, other: HostTrace) -> Iterator[tuple[int, int]]:
    """By how much `other` is moved, and how far that may be off, by each measurement."""
    for epoch, clock in other.clocks:
        if epoch in to.rings:  # its host is the far one
            ends = clock.error_at(other.begin_ns), clock.error_at(other.end_ns)
            yield to.shift_ns + clock.ahead_ns, to.error_ns + max(ends)
    for epoch, clock in to.clocks:
        if epoch in other.rings:
            times = (each - clock.ahead_ns for each in (other.begin_ns, other.end_ns))
            yield to.shift_ns - clock.ahead_ns, to.error_ns + max(map(clock.error_at, times))


# ---- one file ------------------------------------------------------------------------------------


def join(paths: Sequence[Path], out: Path) -> tuple[list[HostTrace], list[Way]]:
    """Writes one trace for several, over a file of this name.  Raises JoinError, OSError."""
    traces = [read(path) for path in paths]
    align(traces)
    for number, trace in enumerate(traces, 1):
        _move(trace, number * _ONE)
    picture = Picture()
    ways = _follow(traces, picture)
    tracks = [_host(trace, traces, number * _ONE) for number, trace in enumerate(traces, 1)]
    events = []
    for packet in itertools.chain(*(trace.packets for trace in traces), described(picture, {}, {})):
        if packet.HasField("track_descriptor"):
            tracks.append(packet)
        elif packet.HasField("track_event"):
            events.append(packet)
    events.sort(key=lambda packet: packet.timestamp)  # stable: each trace is in its order already
    write_packets(out, (traces[0].packets[0], *tracks, *events))  # the first one has the clocks
    return traces, ways


def _move(trace: HostTrace, by: int) -> None:
    """To the common time line, and to numbers that no other trace has.  `by` is that of the host's
    own track, which all others are below."""
    for packet in trace.packets:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            track.uuid += by
            track.parent_uuid += by
            # Two hosts have processes of the same pid, which Perfetto would take for one.
            if track.HasField("process"):
                track.name += f", pid {track.process.pid}"
                track.ClearField("process")
            track.ClearField("thread")
        elif packet.HasField("track_event"):
            packet.timestamp += trace.shift_ns
            event = packet.track_event
            event.track_uuid += by
            for flows in (event.flow_ids, event.terminating_flow_ids):
                flows[:] = [each + by for each in flows]


def _host(trace: HostTrace, traces: Sequence[HostTrace], uuid: int) -> Any:
    """The track of a host, whose name says how far its times may be off."""
    packet = protos.TracePacket(trusted_packet_sequence_id=1)
    packet.track_descriptor.uuid = uuid
    packet.track_descriptor.name = f"host {label(trace, traces)}"
    if trace.error_ns:
        off = f"times within {trace.error_ns / 1e3:.0f} µs of {label(traces[0], traces)}"
        packet.track_descriptor.name += f" ({off})"
    return packet


def label(trace: HostTrace, traces: Sequence[HostTrace]) -> str:
    """What its host is called, and its file if another one is called the same."""
    if [each.host for each in traces].count(trace.host) == 1:
        return trace.host
    return f"{trace.host}, {trace.path.name}"


# ---- frames that go from one to the other --------------------------------------------------------


@dataclass
class _Hop:
    """A frame that a bridge has carried."""

    read: Any
    """Where its exporter took it, and where it arrived: the packets that begin these slices."""
    arrival: Any
    its: Args
    """What the arrival says of it."""


def _follow(traces: Sequence[HostTrace], picture: Picture) -> list[Way]:
    """Draws each frame that a bridge has carried from one of the hosts to another one: from when
    its exporter took it until it arrived, in place of its arrival, with an arrow from that read."""
    taken: dict[tuple[str, int], list[tuple[Any, Args]]] = defaultdict(list)
    for trace in traces:
        for packet in _events(trace):
            if packet.track_event.name.startswith("reads ") and "epoch" in (its := _args(packet)):
                taken[str(its["epoch"]), int(its["sequence"])].append((packet, its))
    at = {epoch: trace for trace in traces for epoch in trace.rings}
    arrows = itertools.count(1)  # below those of any trace
    ways = []
    for trace in traces:
        by_ring: dict[tuple[str, str], list[_Hop]] = defaultdict(list)
        for hop in _take_out(trace, taken):
            by_ring[str(hop.its["near epoch"]), str(hop.its["to"])].append(hop)
        for (epoch, far), hops in by_ring.items():
            near = at[epoch]
            names = [(label(near, traces), near.rings[epoch]), (label(trace, traces), far)]
            title = " to ".join(f"{ring} of {host}" for host, ring in names)
            _draw(picture, title, hops, arrows)
            took = statistics.median(hop.arrival.timestamp - hop.read.timestamp for hop in hops)
            error_ns = trace.error_ns + near.error_ns
            ways.append(Way(title, len(hops), took / 1e9, error_ns / 1e9))
    return ways


def _take_out(
    trace: HostTrace, taken: dict[tuple[str, int], list[tuple[Any, Args]]]
) -> Iterator[_Hop]:
    """The arrivals of frames whose near end is in one of the traces.  They are not in the packets
    of their own any more."""
    kept, packets = [], iter(trace.packets)
    for packet in packets:
        arrives = packet.track_event.name.startswith(f"{hosts.ARRIVES} ")
        if arrives and "near epoch" in (its := _args(packet)):  # else it is a user's own slice
            reads = taken.get((str(its["near epoch"]), int(its["near sequence"])), [])
            mine = read_elsewhere(f"{trace.host}/{its['to']}")
            # It may have been sent more than once, and more than one importer may have it.
            fitting = [read for read, of in reads if of["subscription"] == mine]
            before = [read for read in fitting if read.timestamp <= packet.timestamp]
            if fitting:
                next(packets)  # its end, which is at the same time
                yield _Hop((before or fitting[:1])[-1], packet, its)
                continue
        kept.append(packet)
    trace.packets = kept


def _draw(picture: Picture, title: str, hops: list[_Hop], arrows: Iterator[int]) -> None:
    track = picture.track(title, f"bridge {title}")
    for hop in sorted(hops, key=lambda each: each.read.timestamp):
        begin_ns = min(hop.read.timestamp, hop.arrival.timestamp)  # it may be off by the error
        name = f"carries {hop.its['near sequence']}"
        it = picture.begin_in_lane(title, "frames", track, name, begin_ns, "hop", hop.its)
        picture.end(it, hop.arrival.timestamp)
        arrow = next(arrows)
        hop.read.track_event.flow_ids.append(arrow)
        it.flows_in.append(arrow)
        it.flows_out.extend(hop.arrival.track_event.flow_ids)
