"""The processes of the demo: one producer and four consumers with different delivery policies.

`enter` is the role that a process plays.  It sends "ready" once it has joined the ring, and the
producer waits for the parent's "go".  So nobody misses the first frame.  It returns its report.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gpuring

from ..measure.crew import Pipe
from .arithmetic import EdgeMeasure, FrameMeasure, checksum, thumbnail, weights
from .arrays import Arrays, arrays
from .records import Album, Book, Job, Progress, Report

VIEW_S = 0.015
"""The viewer needs this long for a frame, like a display that runs at about 60 Hz."""
PROGRESS_S = 0.1
THUMBNAIL_COLUMNS = 400


class Line:
    """A child's end of the pipe to the parent."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.next_progress = 0.0
        self.told = 0

    def progress(self, book: Book) -> None:
        """Tells the parent how far `book` is, at most every PROGRESS_S."""
        now = time.monotonic()
        if now >= self.next_progress:
            self.next_progress = now + PROGRESS_S
            fresh, self.told = book.latency_ns[self.told :], len(book.latency_ns)
            self.pipe.send(Progress(len(book.seq), book.lost_sum, fresh))


def enter(pipe: Pipe, name: str, job: Job) -> Report:
    with gpuring.attach(job.ring) as ring:
        return ROLES[name](name, ring, job, Line(pipe))


def _blank(job: Job, kind: Arrays) -> Any:
    return kind.from_host(np.zeros(job.clip.shape, np.uint8))


def produce(name: str, ring: gpuring.Ring, job: Job, line: Line) -> Report:
    book = Book()
    with ring.producer() as producer:
        line.pipe.send("ready")
        line.pipe.receive()
        for _ in range(job.loops):
            for pts, image in job.clip.frames():
                if job.fps and book.seq:  # so the first frame may be late, and is not made up for
                    due = book.published_ns[0] * 1e-9 + len(book.seq) / job.fps
                    time.sleep(max(0.0, due - time.monotonic()))
                with producer.claim() as slot:
                    slot.copy_from(image)
                    slot.meta["pts"] = pts
                    seq = slot.seq
                book.note(seq, pts, time.monotonic_ns(), 0.0, 0)
                line.progress(book)
    return book.report(name, os.getpid(), arrays("numpy"))


def analyse(name: str, ring: gpuring.Ring, job: Job, line: Line) -> Report:
    """Lossless: brightness and motion of every frame."""
    kind = arrays(job.arrays)
    FrameMeasure(job.clip.shape, kind)(_blank(job, kind))  # compiles or loads GPU kernels
    measure, book = FrameMeasure(job.clip.shape, kind), Book()
    with ring.consumer("analyser") as frames:
        line.pipe.send("ready")
        for slot in frames:
            age_s = slot.age
            book.note(slot.seq, int(slot.meta["pts"]), slot.time_ns, age_s, slot.lost)
            book.values.append(measure(kind.of(slot)))
            line.progress(book)
    return book.report(name, os.getpid(), kind)


def find_edges(name: str, ring: gpuring.Ring, job: Job, line: Line) -> Report:
    """Lossless, and two processes share the work: edge maps."""
    kind = arrays(job.arrays)
    measure, book, album = EdgeMeasure(job.clip.shape, kind), Book(), Album()
    thumbnail(measure(_blank(job, kind))[0], THUMBNAIL_COLUMNS, kind)
    with ring.consumer("edges") as frames:
        line.pipe.send("ready")
        for slot in frames:
            age_s = slot.age
            book.note(slot.seq, int(slot.meta["pts"]), slot.time_ns, age_s, slot.lost)
            edges, values = measure(kind.of(slot))
            book.values.append(values)
            if album.wants():
                album.add(slot.seq, thumbnail(edges, THUMBNAIL_COLUMNS, kind))
            line.progress(book)
    return book.report(name, os.getpid(), kind, album)


def view(name: str, ring: gpuring.Ring, job: Job, line: Line) -> Report:
    """Lossy: always the newest frame, at the pace of a display."""
    kind = arrays(job.arrays)
    weight, book, album = weights(int(np.prod(job.clip.shape)), kind), Book(), Album()
    blank = _blank(job, kind)
    checksum(blank, weight, kind), thumbnail(blank, THUMBNAIL_COLUMNS, kind)
    with ring.consumer("viewer", lossless=False) as frames:
        line.pipe.send("ready")
        while True:
            try:
                slot = frames.latest()
            except gpuring.EndOfStream:
                break
            with slot:
                age_s = slot.age
                book.note(slot.seq, int(slot.meta["pts"]), slot.time_ns, age_s, slot.lost)
                frame = kind.of(slot)
                book.values.append(checksum(frame, weight, kind))
                if album.wants():
                    album.add(slot.seq, thumbnail(frame, THUMBNAIL_COLUMNS, kind))
            line.progress(book)
            time.sleep(VIEW_S)
    return book.report(name, os.getpid(), kind, album)


ROLES: dict[str, Callable[[str, gpuring.Ring, Job, Line], Report]] = {
    "producer": produce,
    "analyser": analyse,
    "edges 1": find_edges,
    "edges 2": find_edges,
    "viewer": view,
}
"""By process name; consumers that share a subscription differ in a number."""
