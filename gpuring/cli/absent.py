"""Commands that wait for rings which are not there yet."""

from __future__ import annotations

from collections.abc import Iterable

from gpuring.cli.owners import listed
from gpuring.cli.text import complain
from gpuring.registry import segment


def say_who_is_waited_for(command: str, names: Iterable[str]) -> None:
    """Says which of these rings are not there."""
    if absent := [name for name in names if segment.owner(segment.header_name(name)) < 0]:
        complain(f"gpuring {command}: waiting for {listed(absent)}")
