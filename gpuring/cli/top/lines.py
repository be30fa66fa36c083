"""Lines of text, some of them in a colour, and what of them a screen shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    text: str
    style: str = ""
    """As rich has it; a pipe gets none."""


def window(lines: list[Line], first: int, height: int) -> tuple[list[Line], int]:
    """What a screen of `height` lines shows from line `first` on, and which line that really is.
    If it cannot show all of them, its last line says so."""
    if len(lines) <= height:
        return lines, 0
    room = max(1, height - 1)
    first = min(max(0, first), len(lines) - room)
    shown = lines[first : first + room]
    note = f"(lines {first + 1}–{first + room} of {len(lines)}: arrow keys and PgUp, PgDn scroll)"
    return [*shown, Line(note, "dim")][:height], first


def single(lines: list[Line]) -> list[Line]:
    """Lines in which no line ends."""
    return [Line(text, line.style) for line in lines for text in line.text.split("\n")]
