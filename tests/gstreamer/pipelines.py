"""Pieces of pipelines, and the frames at their ends."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from pathlib import Path

from tests.helpers.processes import PATIENCE_S

META = [("pts", "i8"), ("caps", "S512")]
GRAY = "video/x-raw,format=GRAY8,width=64,height=36,framerate=25/1"
SHOWN = "fakesink silent=false sync=false"
PIDFD_GETFD = 438


def numbers(frames=-1):
    return f"videotestsrc num-buffers={frames} ! {GRAY}"


def read(frames, n):
    """The pts of so many frames, in units of a frame's time."""
    found = []
    for _ in range(n):
        with frames.acquire(PATIENCE_S) as slot:
            found.append(round(slot.meta["pts"] / 40_000_000))
    return found


def publish(producer, values, **meta):
    for value in values:
        with producer.claim(PATIENCE_S) as slot:
            slot.array[:] = value
            for name, each in meta.items():
                slot.meta[name] = each


def of_size(width, height, form, frames):
    caps = f"video/x-raw,format={form},width={width},height={height}"
    return f"videotestsrc num-buffers={frames} ! {caps}"


def taken_for_dead(pid: int, name: str) -> None:
    """Unlocks all that a living process has locked in the header of a ring."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    for each in Path(f"/proc/{pid}/fd").iterdir():
        if str(each.readlink()) == f"/dev/shm/gpuring.{name}":
            theirs = libc.syscall(PIDFD_GETFD, pidfd, int(each.name), 0)
            assert theirs >= 0, os.strerror(ctypes.get_errno())
            fcntl.fcntl(
                theirs, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_UNLCK, 0, 0, 0, 0)
            )
            os.close(theirs)
    os.close(pidfd)
