"""What users see of a recording."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpuring.errors import RingError
from gpuring.printable import counted
from gpuring.recording.counts import RecordedCounts
from gpuring.recording.message import Frame, RecordedRing

if TYPE_CHECKING:
    from gpuring.recording.index import IndexedFile


def read(*paths: str | Path) -> Recording:
    """Opens a recording that `gpuring record` has written.

    `paths` are its files, in any order.  A file that is still being written, or whose recorder was
    killed, is read up to its last whole chunk.  Such a file has no index, so this reads all of it
    once.  Does not wait.  Raises OSError, RingError (a file is no recording, or damaged, or mcap is
    not installed), TypeError (no path, or a list of them).
    """
    if not paths or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise TypeError("read takes the paths of the files of a recording: read(*paths)")
    if not find_spec("mcap"):
        raise RingError("recordings need mcap: pip install 'gpuring[record]'")
    from gpuring.recording.index import IndexedFile

    return Recording([IndexedFile(Path(path)) for path in paths])


class Recording:
    """The frames of a recording.  `read` makes it.  It keeps no file open.

    Its loop has all frames: `for frame in recording`.
    """

    def __init__(self, files: list[IndexedFile]) -> None:
        self._files = sorted(files, key=lambda file: file.start_ns)
        self._with_frames = [file for file in self._files if file.start_ns]

    def __repr__(self) -> str:
        counts = (
            f"{counted(has.frames, 'frame')} of {name!r}" for name, has in self.counts.items()
        )
        return f"<Recording: {', '.join(counts) or 'no frames'}>"

    @property
    def rings(self) -> tuple[RecordedRing, ...]:
        """The rings that were recorded, in order of their first frames.  A ring that took the name
        of another one is another ring."""
        return tuple(dict.fromkeys(ring for file in self._files for ring in file.rings.values()))

    @property
    def complete(self) -> bool:
        """Whether all of its files were finished."""
        return all(file.complete for file in self._files)

    @property
    def start_ns(self) -> int:
        """When the first frame was published, in nanoseconds since 1970.  0 if there is none."""
        return min((file.start_ns for file in self._with_frames), default=0)

    @property
    def end_ns(self) -> int:
        """When the last frame was published, in nanoseconds since 1970.  0 if there is none."""
        return max((file.end_ns for file in self._with_frames), default=0)

    @property
    def counts(self) -> dict[str, RecordedCounts]:
        """How many frames there are of each ring, and how many were lost or torn, by the names of
        the rings.  If a file was cut off, torn frames of its last second may not be counted."""
        found: defaultdict[str, RecordedCounts] = defaultdict(RecordedCounts)
        for file in self._files:
            for name, counts in file.counts:
                found[name] += counts
        return dict(found)

    def frames(
        self,
        names: Collection[str] | None = None,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> Iterator[Frame]:
        """Frames in order of their publication, file after file.  A frame that is in the recording
        twice (`Frame.redelivered`) comes once.

        * `names`: of the rings whose frames are wanted.  None means all of them.
        * `start_ns`, `end_ns`: only frames that were published at `start_ns` or later, and before
          `end_ns`, in nanoseconds since 1970.  Chunks of other times are not read.

        The iterator raises OSError, and RingError where a file is damaged.  Raises ValueError if
        there is no ring of such a name.
        """
        if isinstance(names, str):
            raise TypeError(f"names must be several names, such as [{names!r}]")
        known = {ring.name for ring in self.rings}
        if names is not None and (unknown := sorted({*names} - known)):
            has = ", ".join(sorted(known)) or "none"
            raise ValueError(f"the recording has no ring {unknown[0]!r}; its rings: {has}")
        return self._frames(names, start_ns, end_ns)

    def _frames(
        self, names: Collection[str] | None, start_ns: int | None, end_ns: int | None
    ) -> Iterator[Frame]:
        had: dict[RecordedRing, deque[int]] = {}
        for file in self._with_frames:
            if end_ns is not None and file.start_ns >= end_ns:
                return
            if start_ns is not None and file.end_ns < start_ns:
                continue
            for frame in file.frames(names, start_ns, end_ns):
                # A recorder holds fewer frames than the ring has slots, so no others come again.
                last = had.setdefault(frame.ring, deque(maxlen=frame.ring.slots))
                if not (frame.redelivered and frame.seq in last):
                    last.append(frame.seq)
                    yield frame

    def __iter__(self) -> Iterator[Frame]:
        """All frames in order of their publication, file after file."""
        return self.frames()
