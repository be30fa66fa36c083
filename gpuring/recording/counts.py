"""How many frames of a ring a recording has, and how many are missing.  A file has these numbers in
metadata records."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gpuring.recording.message import Frame

COUNTS = "gpuring.counts"
"""The name of these records.  The last one of a ring holds."""


@dataclass
class RecordedCounts:
    """What a recording has of a ring."""

    frames: int = 0
    """How many frames it has."""
    lost: int = 0
    """How many frames the recorder has missed, as `Frame.lost` counts them."""
    torn: int = 0
    """How many torn frames were left out: their producer died before its GPU had written them."""
    redelivered: int = 0
    """How many of the frames are `redelivered`, and so may be there twice."""

    def add(self, frame: Frame) -> None:
        """Counts one more `frame`."""
        self.frames += 1
        self.lost += frame.lost
        self.redelivered += frame.redelivered

    def __iadd__(self, others: RecordedCounts) -> RecordedCounts:
        self.frames += others.frames
        self.lost += others.lost
        self.torn += others.torn
        self.redelivered += others.redelivered
        return self

    def to_text(self) -> dict[str, str]:
        """The counts as a metadata record has them."""
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def from_text(cls, text: dict[str, str]) -> RecordedCounts:
        """The inverse of to_text, from `text`.  Raises ValueError for anything else."""
        for name in asdict(cls()):
            if not text.get(name, "").isdecimal():
                raise ValueError(f"its record {COUNTS} has no number {name!r}")
        return cls(**{name: int(text[name]) for name in asdict(cls())})
