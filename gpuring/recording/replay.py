"""From files into rings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuring.recording.message import Frame, RecordedRing
from gpuring.recording.reading import Recording
from gpuring.registry.jams import STUCK_S
from gpuring.ring import inner
from gpuring.ring.creation import create_of
from gpuring.ring.producer import Producer
from gpuring.ring.ring import Ring

_LOOK_S = 0.01


class Replay:
    """Rings like those of a recording, into which its frames are published.  It is a context
    manager, which closes them."""

    def __init__(
        self,
        recording: Recording,
        *,
        names: Mapping[str, str] | None = None,
        device: str | None = None,
    ) -> None:
        """names: what rings are called here, if not as in the recording.  device: where they are,
        if not on the same kind of memory.  Makes the rings, and raises what `create` does."""
        self._recording = recording
        self._names, self._device = names or {}, device
        self.published = 0
        """How many frames so far."""
        self._made: dict[str, tuple[RecordedRing, Ring, Producer]] = {}
        """By the names in the recording."""
        try:
            for ring in recording.rings:
                if ring.name not in self._made:
                    self._make(ring)
        except BaseException:
            self.close()
            raise

    def _make(self, recorded: RecordedRing) -> None:
        on_host = recorded.memory in ("host", "pinned")
        device = self._device or ("host" if on_host else "cuda")
        name = self._names.get(recorded.name, recorded.name)
        spec = replace(recorded.spec, origin=None)
        ring = create_of(spec, name, slots=recorded.slots, device=device)
        self._made[recorded.name] = recorded, ring, ring.producer(label="replay")

    @property
    def rings(self) -> list[Ring]:
        """The rings that are open now."""
        return [ring for _, ring, _ in self._made.values()]

    def wait_for_readers(
        self, number: int, tell: Callable[[list[str]], object] = lambda _: None
    ) -> None:
        """Waits until each ring has so many consumers.  If that takes long, it tells once which
        rings have fewer."""
        tell_s = time.monotonic() + STUCK_S
        while fewer := [
            ring.name
            for ring in self.rings
            if sum(peer.role == "consumer" for peer in ring.stats().peers) < number
        ]:
            if time.monotonic() >= tell_s:
                tell(fewer)
                tell_s = math.inf
            time.sleep(_LOOK_S)

    def run(
        self, *, rate: float = 1.0, start_ns: int | None = None, end_ns: int | None = None
    ) -> None:
        """Publishes the frames once.

        * `rate`: how fast, where 1 keeps the gaps of the recording, and `math.inf` leaves none.
        * `start_ns`, `end_ns`: those of `Recording.frames`.

        Waits for readers that are lossless.  If they make it late, it publishes without gaps until
        it has caught up.  Raises RingError.
        """
        first_ns, began_s = None, time.monotonic()
        for frame in self._recording.frames(start_ns=start_ns, end_ns=end_ns):
            first_ns = frame.unix_ns if first_ns is None else first_ns
            due_s = began_s + (frame.unix_ns - first_ns) / 1e9 / rate
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._publish(frame)
            self.published += 1

    def _publish(self, frame: Frame) -> None:
        recorded, *_ = self._made[frame.ring.name]
        if frame.ring.spec != recorded.spec:  # the ring was made again, and had other slots
            self._close(frame.ring.name)
            self._make(frame.ring)
        _, ring, producer = self._made[frame.ring.name]
        with producer.claim(shape=frame.smaller) as slot:
            for name, array in frame.arrays.items():
                slot.copy_from(array.view(inner.array(slot, name).dtype), field=name)
            if frame.meta is not None:
                raw = f"V{frame.meta.dtype.itemsize}"  # also what lies between the fields
                inner.metadata(ring, writable=True, dtype=raw)[slot.index] = frame.meta.view(raw)

    def _close(self, name: str) -> None:
        _, ring, _ = self._made.pop(name)
        ring.close()

    def close(self) -> None:
        """Closes the rings.  Their readers read what is there, and get the end of the stream."""
        for name in list(self._made):
            self._close(name)

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
