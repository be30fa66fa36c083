"""docs/abi.md and the C core agree where every byte is."""

from __future__ import annotations

import os
import re
import struct
import subprocess

import pytest

from gpuring import native
from gpuring.native.snapshot import SLOT_PHASES, TAKE_PHASES
from tests import ROOT
from tests.docs import fields
from tests.helpers import raw_verbs
from tests.helpers.compiled import CC, needs_compiler
from tests.helpers.layout import FIELDS, HEADER, SIZES, TABLES
from tests.helpers.promise import promise

TEXT = fields.PAGE.read_text()
LAYOUT, WORDS, LOCKS = (
    TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for heading in ("Layout", "Words", "Locks")
)


def rows(text: str) -> list[list[str]]:
    lines = re.findall(r"^\|(.*)\|\s*$", text, re.MULTILINE)
    return [[cell.strip().strip("`") for cell in line.split("|")] for line in lines]


def constants() -> dict[str, int]:
    block = re.search(r"^```\s*constants\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert block, "docs/abi.md has no block labelled `constants`"
    pairs = re.findall(r"^(\w+)\s*=\s*(0x[0-9a-f]+|\d+)", block[1], re.MULTILINE)
    return {name: int(value, 0) for name, value in pairs}


def test_every_field_stands_where_the_document_says():
    """Written by `python -m tests.docs.fields`, from layout.h."""
    assert fields.page() == TEXT


def test_the_changelog_names_the_layout_version():
    """docs/abi.md says that it does."""
    changelog = " ".join((ROOT / "CHANGELOG.md").read_text().split())
    assert f"The layout of headers has version {native.VERSION}," in changelog


@needs_compiler
def test_every_field_lies_where_a_compiler_puts_it(tmp_path):
    lines = ['#include "core/layout.h"']
    structs = {table: f"struct gr_{table}{'_entry' * (table == 'peer')}" for table in TABLES}
    for table, nbytes in SIZES.items():
        if table != "head":  # the fields do not fill its page
            lines.append(f'_Static_assert(sizeof({structs[table]}) == {nbytes}, "{table}");')
    for (table, name), field in FIELDS.items():
        struct = structs[table]
        for found, said in (
            (f"offsetof({struct}, {name})", field.offset),
            (f"sizeof((({struct} *)0)->{name})", field.nbytes),
        ):
            lines.append(f'_Static_assert({found} == {said}, "{table}.{name}");')
    source = tmp_path / "fields.c"
    source.write_text("\n".join(lines))
    include = f"-I{HEADER.parent.parent}"
    subprocess.run([str(CC), "-std=c11", include, "-fsyntax-only", str(source)], check=True)


@promise(
    "abi.md",
    "The **layout version** is `head.version`.",
    "This page describes `VERSION` of its [constants](#layout).",
)
def test_every_documented_constant_is_the_cores(segment):
    documented = constants()
    for name in ("VERSION", "MAX_SLOTS", "MAX_PEERS", "MAX_SUBSCRIPTIONS"):
        assert name in documented
    differing = {
        name: (value, getattr(native, name, None))
        for name, value in documented.items()
        if getattr(native, name, None) != value
    }
    assert not differing
    magic = re.search(r"GR_MAGIC UINT64_C\((\w+)\)", HEADER.read_text())
    assert magic
    assert f"`magic` is the number {magic[1]}." in TEXT
    version = FIELDS["head", "version"].offset
    assert struct.unpack_from("<I", segment().bytes(), version) == (documented["VERSION"],)


def test_a_join_is_told_of_each_field_of_an_entry():
    """Nothing that the owner before has left in an entry is taken for the next owner's."""
    step = re.search(r"^7\. Write the entry:(.*?)^8\. ", TEXT, re.MULTILINE | re.DOTALL)
    assert step
    fields_of_entry = {name for table, name in FIELDS if table == "peer"}
    assert fields_of_entry - set(re.findall(r"`(\w+)`", step[1])) == {"word"}  # of step 8


@promise("abi.md", "A new lock has a byte from 263 on.")
def test_every_lock_has_a_documented_byte():
    lock_h = HEADER.with_name("lock.h").read_text()
    taken = [int(byte) for byte in re.findall(r"GR_\w+_BYTE = (\d+)", lock_h)]
    documented = [int(row[0]) for row in rows(LOCKS) if row[0].isdigit()]
    assert sorted(taken) == documented
    assert f"A new lock has a byte from {max(taken) + 1} on." in TEXT


@pytest.mark.parametrize("table", ["slot", "take"])
def test_every_documented_phase_is_the_cores(table):
    said = re.search(rf"[Pp]hases of a {table} word: ([^.]*)\.", WORDS)
    assert said
    numbers = {name.lower(): int(n) for n, name in re.findall(r"(\d+) (\w+)", said[1])}
    phases = SLOT_PHASES if table == "slot" else TAKE_PHASES
    assert numbers == {phase: n for n, phase in enumerate(phases)}


def test_the_documented_tables_are_where_they_are(segment):
    """The tables are where helpers/layout.py computes them from the document's element sizes and
    alignments."""
    elements = {row[0]: row[2] for row in rows(LAYOUT) if row[0] in TABLES and len(row) == 3}
    sizes = {t: int(m[0]) for t, e in elements.items() if (m := re.findall(r"(\d+) bytes", e))}
    assert sizes == {table: SIZES[table] for table in elements if table != "head"}
    for slots, peers, subs in (
        (1, 1, 1),
        (3, 5, 7),
        (64, 33, 2),
        (64, 65, 129),
        (64, 250, 250),
        (1024, 64, 64),
    ):
        ring = segment(slots, peers, subs, meta_nbytes=65, spec=b"x" * 100)
        region = ring.table["event"] - ring.table["fence"]
        assert region % os.sysconf("SC_PAGESIZE") == 0
        assert region >= 8 * slots * peers
        assert ring.creator.meta_stride == 128
        end = ring.table["fence"] + region + slots * 128
        assert ring.bytes()[end : end + 100] == b"x" * 100
        assert raw_verbs.nbytes(ring.creator) == -(-(end + 100) // 4096) * 4096 == len(ring.bytes())
        producer = ring.producer()
        producer.put(1)
        row = ring.work_row(slots % slots, producer.number)
        assert ring.peek("work", "", row) == ring.peek("fence", "", row) == slots << 16
