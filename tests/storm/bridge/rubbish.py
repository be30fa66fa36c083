"""Rubbish that may come from the network: random bytes, and messages that are nearly right."""

from __future__ import annotations

import dataclasses
import ssl
import struct
from random import Random
from typing import Any

from gpuring.bridge.network import wire, wire_bytes

MECHANISMS = (b"NULL", b"PLAIN", b"CURVE", b"GSSAPI", b"", b"\xff" * 20)
BOUNDS = (0, 1, 2, 9, 255, 1 << 16, 1 << 20, 1 << 40, 1 << 48, 1 << 62, 1 << 63, (1 << 64) - 1)
TEXTS = ("", "x", "\n\x1b[2J\u202e", "x" * 2100, "é" * 70, "{", "\0", "0" * 32)


def damaged(chance: Random, said: bytes) -> bytes:
    """A message in which bytes are changed, missing or added.  It may also end too soon."""
    out = bytearray(said)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(out) + 1)
        what = chance.randrange(4)
        if what == 0:
            out[at : at + 1] = chance.randbytes(1)
        elif what == 1:
            del out[at : at + chance.randrange(1, 9)]
        elif what == 2:
            out[at:at] = chance.randbytes(chance.randrange(1, 9))
        elif chance.random() < 0.3:
            del out[at:]
    return bytes(out)


def _frame(body: bytes, flags: int = 0) -> bytes:
    """A frame of ZMTP 2.0 and later.  Of its flags, 1 is more, 2 is long, and 4 is a command."""
    if len(body) > 255:
        return bytes([flags | 2]) + struct.pack(">Q", len(body)) + body
    return bytes([flags, len(body)]) + body


def _command(name: bytes, body: bytes = b"") -> bytes:
    return _frame(bytes([len(name)]) + name + body, 4)


def _ready(chance: Random) -> bytes:
    kind = chance.choice((b"DEALER", b"ROUTER", b"REQ", b"PUB", b"SUB", b"XXX"))
    met = {b"Socket-Type": kind, b"Identity": chance.randbytes(chance.choice((0, 0, 5, 255)))}
    return b"".join(
        bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
        for name, value in met.items()
    )


def zmtp(chance: Random, said: list[bytes]) -> bytes:
    """A peer of ZeroMQ of some version, and its messages."""
    version = chance.choice(((1,), (2, 0), (3, 0), (3, 1), (chance.randrange(256), 0)))
    if version == (1,):  # frames from the first byte on: a length, flags, and its identity
        frames = [chance.randbytes(chance.choice((0, 5))), *said]
        return b"".join(bytes([min(255, len(each) + 1), 0]) + each[:254] for each in frames)
    signature = b"\xff" + struct.pack(">Q", chance.choice((1, 0, 9))) + b"\x7f"
    if version[0] < 3:
        head = bytes([max(0, version[0] - 1), chance.randrange(12)]) + _frame(b"")
        return signature + head + b"".join(map(_frame, said))
    mechanism = chance.choice(MECHANISMS)
    as_server = bytes([chance.randrange(2)])
    out = signature + bytes(version) + mechanism.ljust(20, b"\0")[:20] + as_server + bytes(31)
    if mechanism == b"PLAIN":
        out += _command(b"HELLO", b"\x01u\x01p") + _command(b"WELCOME") + _command(b"INITIATE")
    if mechanism == b"CURVE":
        out += _command(b"HELLO", b"\1\0" + bytes(72) + chance.randbytes(120))
        out += _command(b"WELCOME", chance.randbytes(160))
        out += _command(b"INITIATE", chance.randbytes(257))
    out += _command(chance.choice((b"READY", b"READY", b"ERROR", b"PING")), _ready(chance))
    out += b"".join(_frame(each, chance.choice((0, 0, 0, 1))) for each in said)
    more = (b"SUBSCRIBE", b"CANCEL", b"PING", b"PONG", b"ERROR", b"READY", b"MESSAGE")
    return out + _command(chance.choice(more), chance.randbytes(chance.randrange(40)))


def _client_hello() -> bytes:
    out = ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), out, server_hostname="x"
        ).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
    raise AssertionError("nobody has answered")


_AGENT = b"Host: x\r\nUser-Agent: " + b"Mozilla/5.0 " * 20 + b"\r\nAccept: */*\r\n\r\n"
OTHERS = (
    b"GET / HTTP/1.0\r\n\r\n", b"GET /metrics HTTP/1.1\r\n" + _AGENT,
    b"POST /x HTTP/1.1\r\nContent-Length: 9\r\n" + _AGENT + b"123456789",
    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    _client_hello(), b"\x15\x03\x03\x00\x02\x02\x46", b"SSH-2.0-OpenSSH_9.6\r\n",
    b"*1\r\n$4\r\nPING\r\n", b"\0" * 300, b"\xff" * 300, b"\x01\x00\x01\x00", b"",
)  # fmt: skip


def stream(chance: Random, message: wire.Message) -> bytes:
    """The bytes that a program sends over a connection, whole or damaged."""
    what = chance.random()
    if what < 0.1:
        return chance.randbytes(chance.choice((1, 4, 10, 64, 1000, 100_000)))
    if what < 0.3:
        said = chance.choice(OTHERS)
    else:
        parts = [bytes(part) for part in wire_bytes.encode(7, message)]
        said = zmtp(chance, parts * chance.randrange(3) + [b""])
    return damaged(chance, said) if chance.random() < 0.6 else said


def nearly(chance: Random, session: int, message: wire.Message) -> list[bytes]:
    """The parts of a message with something wrong in them."""
    what = chance.random()
    if what < 0.5:
        fields = [each.name for each in dataclasses.fields(message)]
        if fields:
            name = chance.choice(fields)
            message = dataclasses.replace(message, **{name: _other(chance, getattr(message, name))})
    if what < 0.1:
        session ^= 1 << chance.randrange(64)
    try:
        parts = [bytes(part) for part in wire_bytes.encode(session, message)]
    except (struct.error, UnicodeError, TypeError, OverflowError):
        return [chance.randbytes(30)]
    if what > 0.5:
        at = chance.randrange(len(parts))
        parts[at] = damaged(chance, parts[at])
    if what > 0.95:
        parts = parts * 2 if chance.random() < 0.5 else parts[:-1] or [b""]
    return parts


def _other(chance: Random, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((*BOUNDS, max(0, value - 1), value + 1))
    if isinstance(value, str):
        return chance.choice((*TEXTS, value + "x", value[:-1]))
    if isinstance(value, tuple):
        return (*value, chance.choice(BOUNDS)) if chance.random() < 0.7 else value[1:]
    if isinstance(value, bytes):
        return damaged(chance, value)
    return chance.choice(({}, {"zmq": {}, "nixl": {}}, {"zmq": {"x": TEXTS[2]}}))
