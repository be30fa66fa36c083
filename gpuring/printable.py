"""Text that others have chosen, as it may be logged and shown.

native/host/text.c does the same for the words of the C library, and tests/native/api/test_text.py
compares the two.  This one also takes strings that are no UTF-8.
"""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Text from the network, or from what another process has written.

    Line ends, escape codes of terminals and marks that turn the direction of writing are escaped,
    as "\n" and "\x1b" are here.  So nobody else writes lines of a log.  What is printable stays.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
