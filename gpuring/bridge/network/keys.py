"""Keys of a bridge, for CURVE, ZeroMQ's encryption: each side has a secret and knows the other."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

EXPORT, IMPORT = "export", "import"
_DOMAIN = b"gpuring"
_MOST_NBYTES = 4096
"""A key file has some hundred."""


def make(folder: Path) -> tuple[Path, Path]:
    """Writes a pair of key files, one for the exporter and one for its importers, with mode 0600.

    Raises FileExistsError if one is there, OSError.  Then it leaves none that was not there.
    """
    made = {EXPORT: zmq.curve_keypair(), IMPORT: zmq.curve_keypair()}
    paths: list[Path] = []
    for side, other in ((EXPORT, IMPORT), (IMPORT, EXPORT)):
        public, secret = made[side]
        said = {
            "gpuring bridge key": side,
            "public": public.decode(),
            "secret": secret.decode(),
            "other": made[other][0].decode(),
        }
        path = folder / f"bridge-{side}.key"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            for half in paths:  # without the other one it is of no use
                half.unlink()
            if isinstance(error, FileExistsError):
                why = "is there already: remove it, or give another folder"
                raise FileExistsError(error.errno, why, str(path)) from None
            raise
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(said, indent=1) + "\n")
        paths.append(path)
    return paths[0], paths[1]


def read(path: str | Path, side: str) -> dict[str, bytes]:
    """The keys of a file for this side: "public", "secret" and "other".  Raises ValueError for a
    file that is none, or that others may read, and OSError."""
    path = Path(path)
    known = path.stat()
    no_key = f"{path} is no key of a bridge: `gpuring bridge keygen` makes them"
    if not stat.S_ISREG(known.st_mode) or known.st_size > _MOST_NBYTES:
        raise ValueError(no_key)
    try:
        said = json.loads(path.read_text())
        found = {name: said[name].encode() for name in ("public", "secret", "other")}
        for key in found.values():
            z85.decode(key)
        whose = said["gpuring bridge key"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(no_key) from None
    if known.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(f"{path} may be used by others: chmod 600 {path}")
    if whose != side or any(len(key) != 40 for key in found.values()):
        raise ValueError(
            f"{path} is not for the {side}er of a bridge: take bridge-{side}.key of that pair"
        )
    return found


def serve(socket: Any, keys: dict[str, bytes]) -> None:
    """Lets an exporter's socket talk only to holders of a key.  It needs a `Doorkeeper` first."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys["public"], keys["secret"]
    socket.zap_domain = _DOMAIN


def use(socket: Any, keys: dict[str, bytes]) -> None:
    """Lets an importer's socket talk only to the exporter of its key."""
    socket.curve_publickey, socket.curve_secretkey = keys["public"], keys["secret"]
    socket.curve_serverkey = keys["other"]


class Doorkeeper:
    """Answers ZeroMQ's question whether a key may come in (RFC 27, ZAP)."""

    def __init__(self, context: Any, keys: dict[str, bytes]) -> None:
        self._allowed = z85.decode(keys["other"])
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> bool:
        """Answers what was asked.  Returns whether somebody was turned away."""
        refused = False
        while True:
            try:
                _, request, _, _, _, mechanism, *credentials = self.socket.recv_multipart(
                    zmq.NOBLOCK
                )
            except zmq.Again:
                return refused
            known = mechanism == b"CURVE" and credentials == [self._allowed]
            status = [b"200", b"OK"] if known else [b"400", b"unknown key"]
            self.socket.send_multipart([b"1.0", request, *status, b"", b""])
            refused = refused or not known
