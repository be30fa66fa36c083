"""The fields of a header, read from gpuring/native/core/layout.h, whose head says how its comments
are written.  tests/native/test_layout.py asks a compiler whether they lie there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests import ROOT

HEADER = ROOT / "gpuring" / "native" / "core" / "layout.h"
TABLES = (
    "head", "death", "link", "clock", "sub", "peer", "slot", "take", "tear", "trace_event",
    "trace_table",
)  # fmt: skip

_STRUCT = re.compile(r"(/\*(?:(?!\*/).)*\*/\n)?struct gr_(\w+) \{\n(.*?)\n\};", re.DOTALL)
_PIECE = re.compile(
    r"\s*(?:/\*(?P<comment>.*?)\*/"
    r"|(?:alignas\((?P<aligned>\w+)\) )?(?:struct )?(?P<type>\w+) (?P<name>\w+)"
    r"(?:\[(?P<count>\w+)\])?;(?: */\*(?P<behind>.*?)\*/)?)",
    re.DOTALL,
)
_SIZES = {"gr_word": 8, "gr_word32": 4, "uint64_t": 8, "uint32_t": 4, "uint8_t": 1}


class Field(NamedTuple):
    offset: int
    nbytes: int
    writer: str
    """Who may write it, as its comment says."""
    meaning: str


def read(header: str) -> tuple[dict[tuple[str, str], Field], dict[str, int]]:
    """The fields by their table and name, in the order in which they lie, and the sizes of the
    tables' elements."""
    found, sizes = {}, dict(_SIZES)
    numbers = {name: int(n) for name, n in re.findall(r"(GR_\w+) = (\d+)", header)}
    for before, struct, body in _STRUCT.findall(header):
        table, end = struct.removesuffix("_entry"), 0
        if table in TABLES:
            for piece, writer, meaning in _fields(body, _parts(before)[1]):
                size, count = sizes[piece["type"]], piece["count"] or "1"
                to = numbers[piece["aligned"]] if piece["aligned"] else min(size, 8)
                at, nbytes = -(-end // to) * to, size * int(numbers.get(count, count))
                if not piece["name"].startswith("reserved"):
                    found[table, piece["name"]] = Field(at, nbytes, writer, meaning)
                end = at + nbytes
            sizes[f"gr_{table}"] = end
    return found, {table: sizes[f"gr_{table}"] for table in TABLES}


def _fields(body: str, writer: str) -> Iterator[tuple[re.Match[str], str, str]]:
    """The fields of a struct, each with its writer and its meaning."""
    said, end = "", 0
    for piece in _PIECE.finditer(body):
        assert piece.start() == end, f"layout.h: {body[end : piece.start()]!r} is no field"
        end = piece.end()
        if piece["comment"]:
            meaning, own = _parts(piece["comment"])
            said, writer = piece["comment"] if meaning else "", writer if meaning else own
        else:
            meaning, own = _parts(piece["behind"] or said)
            yield piece, own or writer, meaning
            said = ""


def _parts(comment: str) -> tuple[str, str]:
    """The text of a comment before "Writer:", and the text after it."""
    text = " ".join(re.sub(r"^\s*\*? ?|/\*|\*/", " ", comment, flags=re.MULTILINE).split())
    meaning, _, writer = text.partition("Writer: ")
    return meaning.rstrip(" ."), writer.rstrip(" .")


FIELDS, SIZES = read(HEADER.read_text())

PAGE = 4096


def tables(slots: int, max_peers: int, max_subscriptions: int) -> dict[str, int]:
    """Returns where each table of a header begins."""
    sub = PAGE
    peer = sub + max_subscriptions * SIZES["sub"]
    slot = peer + max_peers * SIZES["peer"]
    take = slot + slots * SIZES["slot"]
    tear = -(-(take + slots * max_subscriptions * SIZES["take"]) // 64) * 64
    work = -(-(tear + slots * max_peers * SIZES["tear"]) // 64) * 64
    fence = -(-(work + 8 * slots * max_peers) // PAGE) * PAGE
    return {
        "head": 0, "sub": sub, "peer": peer, "slot": slot, "take": take, "tear": tear, "work": work,
        "fence": fence, "event": fence + -(-8 * slots * max_peers // PAGE) * PAGE,
    }  # fmt: skip


def place(tables: dict[str, int], table: str, field: str, row: int = 0) -> tuple[int, str]:
    """Returns the offset of a field, and how to unpack it.  If the field has several words, the
    offset is that of the first one.  The row of a take is slot * max_subscriptions + u."""
    if table in ("work", "fence"):
        return tables[table] + 8 * row, "<Q"
    offset, nbytes, *_ = FIELDS[table, field]
    return tables[table] + row * SIZES[table] + offset, "<I" if nbytes == 4 else "<Q"
