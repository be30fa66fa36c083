"""Plain text for terminals and pipes."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TextIO
from unicodedata import east_asian_width

_GAP = 2
_NARROWEST = 8  # of a column whose cells are wrapped
_COMMAND = re.compile(r"\S*`[^`]+`\S*")
_JOINED = "\N{NO-BREAK SPACE}"
"""What stands for a space at which no line may end.  `printable` leaves none in texts of others."""


_SECOND = "\0"
"""What stands for the second column of a wide letter, such as 日.  `printable` leaves none."""


def columns() -> int | None:
    """How long a line of output may be: COLUMNS if it is set, else the width of the terminal.

    None: as long as it likes, because it goes into a pipe or a file.
    """
    with contextlib.suppress(KeyError, ValueError):
        if (asked := int(os.environ["COLUMNS"])) > 0:
            return asked
    return _terminal(sys.stdout)


def of_memory(memory: str, sync: str, gate: str) -> str:
    """Where the slots of a ring are, and on a GPU how streams wait for each other."""
    return f"in {memory} memory" + ("" if sync == "host" else f", sync {sync}, gate {gate}")


def complain(text: str) -> None:
    """An error, on stderr: wrapped for a terminal, in one line for anything else.

    A command goes on if it cannot be said, such as a recorder whose log is full or not read."""
    whole = "\n" in text  # such as a traceback, which stays as it is
    try:
        print(text if whole else wrap(text, _terminal(sys.stderr)), file=sys.stderr)
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """What was written there, and what will be, goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _terminal(stream: TextIO) -> int | None:
    """The width of the terminal to which a stream goes, if it goes to one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.get_terminal_size(stream.fileno()).columns or None
    return None


@dataclass(frozen=True)
class Table:
    """Aligned columns, laid out for some width.  A row of it may have several lines."""

    head: str
    rows: list[str]
    left_out: list[str]
    """The headings of the columns for which there was no room."""
    width: int | None

    def __str__(self) -> str:
        return "\n".join([self.head, *self.rows, *self.note()])

    def note(self) -> list[str]:
        """What is not shown, or nothing."""
        if not self.left_out:
            return []
        note = f"(not shown, for lack of room: {', '.join(self.left_out)})"
        return [wrap(note, self.width, "  ")]


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    drop: Sequence[str] = (),
    width: int | None = None,
    least: dict[str, int] | None = None,
) -> Table:
    """A table of at most `width` columns of text, if that can be done.

    The columns named in `right` are right-aligned.  Where there is too little room, the columns
    named in `drop` go, the first of them first.  If that is not enough, the cells of the widest
    left-aligned columns are wrapped.  No cell is ever cut.

    `least` has the least width of columns by their headings, and is raised to what they have.  A
    table that is shown again and again then stands still while its values change.
    """
    rows = [[_spaced(cell) for cell in row] for row in rows]
    shown = list(range(len(headings)))
    least = {} if least is None else least
    widths = [
        max(least.get(column[0], 0), *map(len, column))
        for column in zip(headings, *rows, strict=True)
    ]
    least.update(zip(headings, widths, strict=True))

    def too_wide() -> int:
        total = sum(widths[k] for k in shown) + _GAP * (len(shown) - 1)
        return 0 if width is None else total - width

    left_out = []
    for heading in drop:
        if too_wide() <= 0:
            break
        shown.remove(headings.index(heading))
        left_out.append(heading)
    while too_wide() > 0:
        widest = max((k for k in shown if headings[k] not in right), key=widths.__getitem__)
        if widths[widest] <= max(_NARROWEST, len(headings[widest])):
            break
        widths[widest] -= 1

    def line(cells: Sequence[str]) -> str:
        wrapped = [_lines(cells[k], widths[k]) or [""] for k in shown]
        lines = []
        for n in range(max(map(len, wrapped))):
            parts = [
                part.rjust(widths[k]) if headings[k] in right else part.ljust(widths[k])
                for k, cell in zip(shown, wrapped, strict=True)
                for part in cell[n : n + 1] or [""]
            ]
            lines.append((" " * _GAP).join(parts).rstrip())
        return "\n".join(lines).replace(_SECOND, "")

    return Table(line(headings), [line(row) for row in rows], left_out, width)


def _spaced(text: str) -> str:
    """`text` with as many letters as it has columns on a terminal."""
    if text.isascii():
        return text
    return "".join(each + _SECOND * (east_asian_width(each) in "WF") for each in text)


def _lines(text: str, width: int, **options: Any) -> list[str]:
    """Spaced lines of a spaced text.  One that is broken between the two columns of a letter gets
    both, so it must not be full."""
    room = width - (_SECOND in text and len(text) > width)
    lines = [each.replace(_SECOND, "") for each in textwrap.wrap(text, room, **options)]
    return [_spaced(each) for each in lines if each.strip()]


def wrap(text: str, width: int | None, indent: str = "") -> str:
    """`text` as lines of at most `width` columns; those after the first begin with `indent`.

    A command in back quotes is kept in one line if it fits into one, so that it can be copied.
    """
    if width is None:
        return text
    width = max(width, 2 * _NARROWEST)

    def joined(command: re.Match[str]) -> str:
        fits = len(indent) + len(command[0]) <= width
        return command[0].replace(" ", _JOINED) if fits else command[0]

    spaced = _COMMAND.sub(joined, _spaced(text))
    lines = "\n".join(_lines(spaced, width, subsequent_indent=indent, break_on_hyphens=False))
    return lines.replace(_JOINED, " ").replace(_SECOND, "")


def nbytes(n: int) -> str:
    """1536 -> "1.5 KiB"."""
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def seconds(s: float) -> str:
    """0.00123 -> "1.2 ms"; 5000 -> "1h23m"."""
    if s < 1e-3:
        return f"{s * 1e6:.0f} µs"
    if s < 1:
        return f"{s * 1e3:.1f} ms"
    if s < 60:
        return f"{s:.1f} s"
    minutes, rest = divmod(int(s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"
