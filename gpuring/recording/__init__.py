"""Recordings of rings: MCAP files, which Foxglove and robotics tools read.

`gpuring record` writes them, `gpuring replay` makes rings of them again, and `read` is for Python.
The page "Record and replay" describes it in full.  Needs `gpuring[record]`.

    message.py       what a message of a recording holds: a frame's copy, and how it is laid out
    places.py        the GPU of a ring whose frames are copied to the host
    recorder.py      from rings into files; files.py has what these are called and when one ends
    reading.py       what users see of a recording; index.py finds its parts, also in a cut file
    counts.py        how many frames of a ring are in a file, and how many are missing
    replay.py        from files into rings
"""

from __future__ import annotations

from gpuring.recording.counts import RecordedCounts
from gpuring.recording.message import Frame, RecordedRing
from gpuring.recording.reading import Recording, read

__all__ = ["Frame", "RecordedCounts", "RecordedRing", "Recording", "read"]


def __dir__() -> list[str]:
    return __all__
