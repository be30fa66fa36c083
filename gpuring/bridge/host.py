"""How this host is called."""

from __future__ import annotations

import socket


def hostname() -> str:
    """The name of this host in those of bridges and origins."""
    name = "".join(each for each in socket.gethostname() if each.isprintable() and each != "/")
    return name[:64] or "host"
