"""What the name of a subscription says: that it is unnamed, or that it is read on another host.

If a program waits for a subscription that is read on another host, errors and tools say by the
subscription's name where to look.  So a program that carries frames to another host, in whatever
way, takes the name from here.
"""

from __future__ import annotations

import hashlib
import re

from gpuring import native

FOREVER_NS = 2**63 - 1
"""The patience of a durable subscription that somebody has made endless.  At first it is 0, which
is endless as well."""
_UNNAMED = "#"


def text_of(name: bytes) -> str:
    """A name, or the label of a peer, as text."""
    return name.decode(errors="replace")


def is_unnamed(name: str) -> bool:
    """Whether nobody else can join a subscription of this name.  Users cannot give such a name."""
    return name.startswith(_UNNAMED)


def encode(name: str) -> bytes:
    """The name that a user has given, checked.  Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"subscription must be a str or None, not {type(name).__name__}")
    encoded = name.encode(errors="surrogatepass")  # which is no UTF-8, and refused
    native.check_subscription(encoded)
    return encoded


def read_elsewhere(reader: str) -> str:
    """The name of the subscription whose frames go to `reader` on another host."""
    name = f"{native.ELSEWHERE}{reader}"
    if len(name.encode()) <= native.MAX_NAME_NBYTES:
        return name
    digest = hashlib.sha256(reader.encode()).hexdigest()[:8]
    room = native.MAX_NAME_NBYTES - len(digest) - 1
    return f"{name.encode()[:room].decode(errors='ignore')}~{digest}"


def is_read_elsewhere(name: str) -> bool:
    return name.startswith(native.ELSEWHERE)


def elsewhere(name: str) -> str | None:
    """The reader on another host.  None: the name was too long, and has only its beginning."""
    return None if re.search("~[0-9a-f]{8}$", name) else name.removeprefix(native.ELSEWHERE)
