"""Words of messages: text that others have chosen, as it may be logged, shown, and typed into a
shell, and numbers of things.

native/host/text.c does the same for the words of the C library, and tests/native/api/test_text.py
compares the two.  This one also takes strings that are no UTF-8.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def printable(text: str) -> str:
    r"""Text from the network, or from what another process has written.

    Line ends, escape codes of terminals and marks that turn the direction of writing are escaped,
    as "\n" and "\x1b" are here.  So nobody else writes lines of a log.  What is printable stays.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def command(*words: str, names: Sequence[str] = ()) -> str:
    """A command line that does the same wherever it is pasted.  `names` are its last words, and
    none of them is an option."""
    end = ["--"] if any(name.startswith("-") for name in names) else []
    return " ".join(map(_quoted, (*words, *end, *names)))


def _quoted(word: str) -> str:
    """What a shell reads as this word.  It is printable, and has no back quote, because texts put
    commands between those."""
    if word.isprintable() and "`" not in word:
        return shlex.quote(word)
    kept = (c if c.isprintable() and c not in "'\\`" else _bytes(c) for c in word)
    return f"$'{''.join(kept)}'"


def _bytes(c: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in c.encode(errors="surrogatepass"))


def counted(n: int, noun: str) -> str:
    """1, "peer" -> "1 peer"; 2, "peer" -> "2 peers"."""
    return f"{n} {noun if n == 1 else f'{noun}s'}"
