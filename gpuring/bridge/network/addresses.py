"""Names of hosts: that of this one, and the addresses of others that are given by a name."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading

from gpuring.errors import RingError


class NoAddress(RingError):
    """A name of a host has no address now."""


def hostname() -> str:
    """The name of this host in those of bridges and origins."""
    name = "".join(each for each in socket.gethostname() if each.isprintable() and each != "/")
    return name[:64] or "host"


def is_name(host: str) -> bool:
    """Whether the host is given by a name, and not by an address ("10.0.0.5", "[fd00::5]")."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return True
    return False


def addresses(host: str) -> list[str]:
    """The addresses of a name, those of IPv4 first, as they stand before a port.  May take as long
    as the resolver of this host waits.  Raises NoAddress if there are none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise NoAddress(f"{host} does not resolve: {why}") from None
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    ends = [str(end[0]) for _, _, _, _, end in found]
    return [f"[{end}]" if ":" in end else end for end in ends]


class Lookup:
    """Asks for the addresses of a name without holding up who asks."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._read, self._write = os.pipe()
        self._found: list[str] | NoAddress = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._found = addresses(self._host)
        except NoAddress as error:
            self._found = error
        os.close(self._write)

    def fileno(self) -> int:
        """Becomes readable when there is an answer."""
        return self._read

    def answer(self) -> list[str]:
        """The addresses, when there is an answer.  Raises NoAddress if there are none."""
        os.close(self._read)
        if isinstance(self._found, NoAddress):
            raise self._found
        return self._found
