"""Plain text for terminals and pipes."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()
) -> str:
    """Aligned columns, two spaces apart; the columns in `right` are right-aligned."""
    widths = [max(len(row[k]) for row in (headings, *rows)) for k in range(len(headings))]
    lines = (
        "  ".join(
            cell.rjust(width) if k in right else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (headings, *rows)
    )
    return "\n".join(lines)


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


def printable(text: str) -> str:
    """A name as it may be sent to a terminal: others choose it, and it may hold escape codes."""
    return "".join(c if c.isprintable() else "?" for c in text)
