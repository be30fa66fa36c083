"""Addresses: what users write for the place to listen at and for a ring of another host, the name
of this host, and the addresses of others that are given by a name."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import threading

from gpuring.errors import RingError
from gpuring.registry import segment

PORT = 9760


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


_PLACE = r"(\[[0-9a-fA-F:.%\w]+\]|[^:\[\]/\s]+):([0-9]{1,5})"
"""A host and a port."""


def to_listen_at(text: str, any_address: bool) -> str:
    """An address to listen at.  Raises ValueError, TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"an address must be HOST:PORT, such as '10.0.0.5:{PORT}', not {text!r}")
    found = re.fullmatch(_PLACE, text)
    if not found or int(found[2]) > 65535:
        raise ValueError(f"an address must be HOST:PORT, such as 10.0.0.5:{PORT}, not {text!r}")
    if found[1] == "*":
        raise ValueError(f"all addresses of this host are 0.0.0.0:{found[2]}, not {text!r}")
    host = "127.0.0.1" if found[1] == "localhost" else found[1]
    try:
        is_loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
        why = f"other hosts can reach {host}"
    except ValueError:
        is_loopback = False
        why = f"{host} is a name, and other hosts may reach the address that it has later"
    if not is_loopback and not any_address:
        raise ValueError(
            f"{why}: give a key (gpuring bridge keygen), or say that everybody who can "
            "reach it may read the ring (insecure=True)"
        )
    return f"{host}:{found[2]}"


def ring_of(address: str) -> tuple[str, str]:
    """The exporter's address and the ring there.  Raises ValueError, TypeError."""
    if not isinstance(address, str):
        raise TypeError(f"an exporter's ring must be 'HOST:PORT/RING', not {address!r}")
    found = re.fullmatch(f"({_PLACE})/(.+)", address)
    if not found or not 0 < int(found[3]) <= 65535 or found[2] == "*":
        raise ValueError(
            f"an exporter's ring must be HOST:PORT/RING, such as 10.0.0.5:{PORT}/cam0, with a name "
            f"or an address of one host, not {address!r}"
        )
    return found[1], segment.check_name(found[4])


def reserved(address: str) -> socket.socket | None:
    """A socket that has an address and does not listen, so that a worker can.  None: somebody was
    faster."""
    host, port = address.rsplit(":", 1)
    at = socket.socket(socket.AF_INET6 if "[" in host else socket.AF_INET)
    try:
        at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        at.bind((host.strip("[]"), int(port)))
    except OSError:
        at.close()
        return None
    return at
