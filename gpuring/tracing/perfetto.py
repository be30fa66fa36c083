"""Writes a picture as a trace of Perfetto (protobuf), which ui.perfetto.dev opens."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from gpuring.tracing.tracks import Args, Count, Instant, Picture, Slice, Track

_MONOTONIC, _REALTIME, _BOOTTIME = (
    protos.BUILTIN_CLOCK_MONOTONIC,
    protos.BUILTIN_CLOCK_REALTIME,
    protos.BUILTIN_CLOCK_BOOTTIME,
)
_SEQUENCE = 1
_Event = protos.TrackEvent
_MOST_32, _MOST = 2**31 - 1, 2**63 - 1
"""The largest numbers that fit.  A peer has made up a larger one, which must not cost the trace."""


Threads = Mapping[tuple[int, int], str]


def write(path: Path, picture: Picture, pids: Mapping[int, str], threads: Threads) -> int:
    """Writes the file, over one of this name.  Returns its size in bytes.  Raises OSError.

    `pids`, `threads`: what processes and threads are called."""
    return write_packets(path, _packets(picture, pids, threads))


def write_packets(path: Path, packets: Iterable[protos.TracePacket]) -> int:
    """The same with the packets of a trace.  A file that cannot be written whole is removed."""
    file = path.open("wb")
    try:
        with file:
            for packet in packets:
                file.write(protos.Trace(packet=[packet]).SerializeToString())
            return file.tell()
    except BaseException:
        if path.is_file() and not path.is_symlink():  # not a device, and not /dev/stdout
            path.unlink()
        raise


def _packets(
    picture: Picture, pids: Mapping[int, str], threads: Threads
) -> Iterator[protos.TracePacket]:
    yield _clocks()
    yield from described(picture, pids, threads)


def described(
    picture: Picture, pids: Mapping[int, str], threads: Threads, first: int = 1
) -> Iterator[protos.TracePacket]:
    """Its tracks, numbered from `first` on, and behind them what is on them, in the order of
    time."""
    ids: dict[Track, int] = {}
    for number, track in enumerate(picture.tracks(), first):
        ids[track] = number
        yield _described(track, ids, pids, threads)
    for _, _, packet in sorted(_events(picture, ids), key=lambda each: each[:2]):
        yield packet


def _clocks() -> protos.TracePacket:
    """All times are CLOCK_MONOTONIC of this host.  The first packet says so, and what the other
    clocks say now, so that a trace of the whole system can be laid beside this one."""
    packet = protos.TracePacket(trusted_packet_sequence_id=_SEQUENCE)
    packet.sequence_flags = protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    packet.trace_packet_defaults.timestamp_clock_id = _MONOTONIC
    packet.clock_snapshot.primary_trace_clock = _MONOTONIC
    for number, clock in (
        (_MONOTONIC, time.CLOCK_MONOTONIC),
        (_BOOTTIME, time.CLOCK_BOOTTIME),
        (_REALTIME, time.CLOCK_REALTIME),
    ):
        packet.clock_snapshot.clocks.add(clock_id=number, timestamp=time.clock_gettime_ns(clock))
    return packet


def _described(
    track: Track, ids: Mapping[Track, int], pids: Mapping[int, str], threads: Threads
) -> protos.TracePacket:
    packet = protos.TracePacket(trusted_packet_sequence_id=_SEQUENCE)
    it = packet.track_descriptor
    it.uuid = ids[track]
    if track.parent is not None:
        it.parent_uuid = ids[track.parent]
    if track.tid:
        name = threads.get((track.pid, track.tid)) or f"thread {track.tid}"
        it.name = it.thread.thread_name = name
        it.thread.pid, it.thread.tid = min(track.pid, _MOST_32), min(track.tid, _MOST_32)
    elif track.pid:
        it.name = it.process.process_name = pids.get(track.pid) or f"pid {track.pid}"
        it.process.pid = min(track.pid, _MOST_32)
    else:
        it.name = track.name
    if track.is_counter:
        it.counter.SetInParent()
    return packet


def _events(
    picture: Picture, ids: Mapping[Track, int]
) -> Iterator[tuple[int, int, protos.TracePacket]]:
    for it in picture.slices:
        yield it.begin_ns, it.begun, _begin(it, ids)
        yield it.end_ns, it.ended, _packet(it.end_ns, ids[it.track], _Event.TYPE_SLICE_END)
    for instant in picture.instants:
        yield instant.time_ns, instant.order, _instant(instant, ids)
    for count in picture.counts:
        yield count.time_ns, count.order, _count(count, ids)


def _packet(at: int, track: int, kind: int) -> protos.TracePacket:
    packet = protos.TracePacket(timestamp=at, trusted_packet_sequence_id=_SEQUENCE)
    packet.track_event.type = kind
    packet.track_event.track_uuid = track
    return packet


def _begin(it: Slice, ids: Mapping[Track, int]) -> protos.TracePacket:
    packet = _packet(it.begin_ns, ids[it.track], _Event.TYPE_SLICE_BEGIN)
    packet.track_event.name = it.name
    packet.track_event.categories.append(it.kind)
    packet.track_event.flow_ids.extend(it.flows_out)
    packet.track_event.terminating_flow_ids.extend(it.flows_in)
    _annotated(packet.track_event, it.args)
    return packet


def _instant(it: Instant, ids: Mapping[Track, int]) -> protos.TracePacket:
    packet = _packet(it.time_ns, ids[it.track], _Event.TYPE_INSTANT)
    packet.track_event.name = it.name
    _annotated(packet.track_event, it.args)
    return packet


def _count(it: Count, ids: Mapping[Track, int]) -> protos.TracePacket:
    packet = _packet(it.time_ns, ids[it.track], _Event.TYPE_COUNTER)
    packet.track_event.counter_value = min(it.value, _MOST)
    return packet


def _annotated(event: protos.TrackEvent, args: Args) -> None:
    for name, value in args.items():
        if isinstance(value, int):
            event.debug_annotations.add(name=name, int_value=min(value, _MOST))
        else:
            event.debug_annotations.add(name=name, string_value=value)
