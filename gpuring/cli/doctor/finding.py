"""What a check has found, and how it is shown."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "skip", "warn", "fail"]
_INDENT = 24


@dataclass(frozen=True)
class Finding:
    """One check's answer.

    fail: rings do not work as they should.  warn: some rings do not, or not with every program.
    Both say what to do about it.  skip: the check was not made, because something is missing that
    need not be there.  It says what, or another finding does.
    """

    level: Level
    what: str
    found: str
    fix: str = ""


def in_lines(finding: Finding, width: int) -> str:
    """A finding as lines of at most `width` columns."""
    indent = " " * _INDENT
    width = max(width, 2 * _INDENT)
    wrapped = textwrap.fill(
        finding.found,
        width,
        initial_indent=f"{finding.level:<6}{finding.what:<17} ",
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    if not finding.fix:
        return wrapped
    fix = textwrap.fill(
        finding.fix,
        width,
        initial_indent=f"{indent}→ ",
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
    )
    return f"{wrapped}\n{fix}"
