"""What a check has found, and how it is told."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]
_WIDTH = 96


@dataclass(frozen=True)
class Finding:
    """One check's answer.

    fail: rings do not work as they should.  warn: some do not, or not with everybody.  Both say
    what to do about it.
    """

    level: Level
    what: str
    found: str
    fix: str = ""


def told(finding: Finding) -> str:
    """A finding as lines for a terminal or a pipe."""
    indent = " " * 24
    wrapped = textwrap.fill(
        finding.found,
        _WIDTH,
        initial_indent=f"{finding.level:<6}{finding.what:<17} ",
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    if not finding.fix:
        return wrapped
    fix = textwrap.fill(
        finding.fix,
        _WIDTH,
        initial_indent=f"{indent}→ ",
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
    )
    return f"{wrapped}\n{fix}"
