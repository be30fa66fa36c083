"""The C library shows text that others have chosen as printable.py shows it."""

from __future__ import annotations

import sys
import unicodedata

import pytest

import gpuring
from gpuring.printable import printable
from tests.helpers.rings import small_ring


def shown(name: str, text: str) -> str:
    """How a message shows a label."""
    with (
        small_ring(name, slots=1) as ring,
        ring.consumer(label=text) as frames,
        ring.producer() as producer,
    ):
        producer.claim(0).publish()
        with frames.acquire(0), pytest.raises(gpuring.RingFull) as full:
            producer.claim(0)
    return str(full.value).partition("process (")[2].partition(", pid")[0]


def test_what_is_not_printable_is_escaped(name):
    for text in (
        "\x1b[2J",
        "a\nb\tc\r",
        "\u202eabc",
        "é µ 世界 🎥",
        "\x7f\x85\xad",
        "\ufeff\u2066x",
    ):
        assert shown(name, text) == printable(text)


def test_of_all_that_unicode_has_the_same_is_escaped(name):
    """The exceptions are characters that this version of Unicode does not have, which are shown as
    they are.  Beside each character that is not printable stand its neighbours."""
    hidden = {
        code for code in range(1, sys.maxunicode)
        if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zs", "Zl", "Zp")
    }  # fmt: skip
    hidden |= {0xE000, 0xF8FF, 0xF0000, 0x10FFFD}  # the ends of the ranges for private use
    there = sorted(
        code for code in {each + k for each in hidden for k in (-1, 0, 1)} - {0}
        if unicodedata.category(chr(code)) not in ("Cn", "Cs") and chr(code) not in "(,"
    )  # fmt: skip
    for k in range(0, len(there), 15):
        text = "".join(map(chr, there[k : k + 15]))
        assert shown(name, text) == printable(text)
