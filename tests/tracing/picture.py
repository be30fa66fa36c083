"""Reads a trace back, as Perfetto would, and checks what Perfetto needs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

EVENT = protos.TrackEvent


@dataclass(eq=False)
class Slice:
    name: str
    track: str
    """Its name, behind those of all above it."""
    pid: int
    begin_ns: int
    args: dict[str, Any]
    end_ns: int = 0
    leads_to: list[Slice] = field(default_factory=list)


@dataclass
class Trace:
    tracks: list[str]
    slices: list[Slice] = field(default_factory=list)
    instants: list[tuple[str, str]] = field(default_factory=list)
    """The track, and what happened."""
    counts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def named(self, begin: str) -> list[Slice]:
        return [each for each in self.slices if each.name.startswith(begin)]


def read(path: Path) -> Trace:
    """Reads a file.  Fails if a track has no name, slices overlap, a slice ends before it begins,
    or an arrow has no end."""
    packets = protos.Trace.FromString(path.read_bytes()).packet
    described = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in packets
        if packet.HasField("track_descriptor")
    }
    assert all(track.name for track in described.values())

    def full(uuid: int) -> str:
        track = described[uuid]
        return f"{full(track.parent_uuid)} / {track.name}" if track.parent_uuid else track.name

    def pid(uuid: int) -> int:
        track = described[uuid]
        return track.process.pid or (pid(track.parent_uuid) if track.parent_uuid else 0)

    trace = Trace([full(uuid) for uuid in described])
    opened: dict[int, list[Slice]] = defaultdict(list)
    starts: dict[int, Slice] = {}
    ends: dict[int, Slice] = {}
    events = [packet for packet in packets if packet.HasField("track_event")]
    for packet in sorted(events, key=lambda each: each.timestamp):  # stable, as Perfetto does it
        event, at = packet.track_event, packet.timestamp
        uuid = event.track_uuid
        args = {each.name: each.string_value or each.int_value for each in event.debug_annotations}
        if event.type == EVENT.TYPE_SLICE_BEGIN:
            it = Slice(event.name, full(uuid), pid(uuid), at, args)
            assert event.name
            opened[uuid].append(it)
            starts |= dict.fromkeys(event.flow_ids, it)
            ends |= dict.fromkeys(event.terminating_flow_ids, it)
        elif event.type == EVENT.TYPE_SLICE_END:
            it = opened[uuid].pop()
            it.end_ns = at
            trace.slices.append(it)
        elif event.type == EVENT.TYPE_INSTANT:
            trace.instants.append((full(uuid), event.name))
        else:
            trace.counts[full(uuid)].append(event.counter_value)
    assert not any(opened.values()), "a slice does not end"
    assert starts.keys() == ends.keys(), "an arrow has one end only"
    for number, start in starts.items():
        start.leads_to.append(ends[number])
    for uuid in {packet.track_event.track_uuid for packet in events}:
        _check_nesting(uuid, events)
    return trace


def _check_nesting(uuid: int, events: list[Any]) -> None:
    """Checks that of overlapping slices of a track the later one ends earlier, and comes later in
    the file."""
    depth, last = 0, 0
    for packet in events:
        if packet.track_event.track_uuid != uuid:
            continue
        assert packet.timestamp >= last
        last = packet.timestamp
        depth += packet.track_event.type == EVENT.TYPE_SLICE_BEGIN
        depth -= packet.track_event.type == EVENT.TYPE_SLICE_END
        assert depth >= 0
