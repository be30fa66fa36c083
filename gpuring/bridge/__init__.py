"""A ring on another host: a bridge carries the frames of a ring there, into a ring of its own.

An *exporter* beside the ring listens, and *importers* on other hosts connect to it.  Each importer
fills a ring of its own, which programs there use like any other ring.  The page "More than one
machine" describes it in full.  Needs `gpuring[bridge]`.

Each side is two processes.  The *supervisor* is in the user's process, and starts the *worker*.

    supervisor.py    what both supervisors do; exporter/ and importer/ have what each does besides
    worker.py        what both workers have, and the log; worker_main.py is where they begin
    exporter/        beside the near ring
    importer/        fills the far ring
    network/         messages, keys, addresses that users give
    engines/         what carries the bytes of frames
    stats.py         what users see of it
    descriptors.py   waiting for file descriptors
"""

from __future__ import annotations

import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from gpuring import native
from gpuring.arguments import Octal, between_one_and, integer, permissions, seconds_from
from gpuring.bridge.exporter.supervisor import Export
from gpuring.bridge.importer.supervisor import Import
from gpuring.bridge.network.addresses import PORT, hostname, ring_of, to_listen_at
from gpuring.bridge.stats import BridgeStats, LinkStats
from gpuring.errors import RingError
from gpuring.registry import diagnosis, segment
from gpuring.ring.attaching import whose

__all__ = ["BridgeStats", "Export", "Import", "LinkStats", "export", "import_", "keygen"]


def __dir__() -> list[str]:
    return __all__


def export(
    name: str,
    *,
    listen: str = f"127.0.0.1:{PORT}",
    key: str | Path | None = None,
    insecure: bool = False,
    patience: float = 60.0,
    timeout: float = 3.0,
    device: str | int | None = None,
    owner: int | None = None,
) -> Export:
    """Offers the ring `name` to importers on other hosts, until it is closed.

    It starts a process, which is an ordinary consumer of the ring: each importer has a subscription
    "bridge: HOST/RING".  The ring need not be there yet.

    * `listen`: an address of this host with a port, "10.0.0.5:9760" or "[fd00::5]:9760".  A host
      name is allowed, too, and is looked up again and again until it has an address.  Port 0 takes
      a free port; `address` says which.
    * `key`: the key file of an exporter (`keygen`).  Everything is encrypted then, and only
      importers with the other file are served.
    * `insecure`: allows to listen without a key at an address that other hosts can reach.  Then
      everybody who can reach it can read the frames.
    * `patience`: for how many seconds a subscription is kept when its importer is gone.  That of a
      lossless importer is also kept when this process has died.  It holds up the producers in that
      time.
    * `timeout`: after how many seconds of silence the other side counts as gone, 0.1 or more.
    * `device`: the GPU on which the ring is used, as for `attach`.  "host" is for a ring in host
      memory.  None is for a ring in host memory, or else the current GPU.
    * `owner`: the id of the user whose ring it must be, as for `attach`.

    Returns an `Export`, a context manager that ends the bridge with its block.  Does not wait.
    Raises PermissionError if the ring is another user's, TooManyPeers if it is a service,
    DeviceError if there is no such GPU, RingError if pyzmq is missing, ValueError, TypeError,
    OSError (the key file).  `Export.wait` raises what goes wrong later.
    """
    _need_zmq()
    segment.check_name(name)
    _check_ring(name, owner := whose(owner))
    options = {
        "role": "export",
        "ring": name,
        "listen": to_listen_at(listen, key is not None or insecure),
        "host": hostname(),
        "key": _key(key, "export"),
        "patience_s": seconds_from(0, patience, "patience"),
        "timeout_s": seconds_from(0.1, timeout, "timeout"),
        "device": None if device == "host" else device,
        "owner": owner,
    }
    _check_device(device)
    return Export(f"export of {name}", options)._start()


def import_(
    address: str,
    *,
    name: str | None = None,
    slots: int = 16,
    device: str | int | None = None,
    policy: Literal["lossless", "lossy", "latest"] = "lossless",
    in_flight: int = 256 << 20,
    engine: Literal["auto", "zmq", "nixl"] = "auto",
    key: str | Path | None = None,
    timeout: float = 3.0,
    give_up: float | None = None,
    mode: int = Octal(0o600),
) -> Import:
    """Fills a ring on this host with the frames of a ring on another one, until it is closed.

    It starts a process, which is the producer of the ring here.  The ring has the shapes, dtypes
    and metadata of the other one.  It is created when the exporter and its ring have been reached.
    If the importer was connected before the other ring was there, it begins with the oldest frame
    of that ring, and otherwise with the next one.

    * `address`: the exporter's address and the ring there, "10.0.0.5:9760/cam0".  A host name is
      looked up before each connection.
    * `name`: the ring's name here.  None: the same as there.
    * `slots`: how many slots the ring here has.
    * `device`: where the slots of the ring here are, as for `create`: "host", "cuda", "cuda:1".
      None is the current GPU.  Those of the other ring may be elsewhere.
    * `policy`: "lossless" takes every frame, once and in order, and the producers there wait while
      there is no room here.  "lossy" takes what there is room for.  "latest" takes the newest frame
      whenever one can be sent.  What the other two leave out counts in `slot.lost` here.
    * `in_flight`: how many bytes of frames may be on their way.  One frame always may.
    * `engine`: what carries the frames.  "auto" takes what suits the two machines, and logs why.
    * `key`: the key file of an importer (`keygen`).
    * `timeout`: after how many seconds of silence the other side counts as gone, 0.1 or more.
    * `give_up`: the importer ends after so many seconds without a session.  That includes the time
      in which there is no ring there, or the exporter ends each session at once.  None: never.
    * `mode`: permissions of the ring here, as for `create`.

    Returns an `Import`, a context manager that ends the bridge with its block.  Does not wait, so
    attach to the ring here with a timeout.  Raises RingExists if the ring is in use on this host,
    DeviceError if there is no such GPU, RingError if pyzmq is missing, ValueError, TypeError,
    OSError (the key file).  `Import.wait` raises what goes wrong later.
    """
    _need_zmq()
    where, near = ring_of(address)
    own = segment.check_name(near if name is None else name)
    if policy not in ("lossless", "lossy", "latest"):
        raise ValueError(f'policy must be "lossless", "lossy" or "latest", not {policy!r}')
    if engine not in ("auto", "zmq", "nixl"):
        raise ValueError(f'engine must be "auto", "zmq" or "nixl", not {engine!r}')
    in_flight = integer(in_flight, "in_flight", "a number of bytes")
    if in_flight < 1:
        raise ValueError(f"in_flight must be a number of bytes above 0, not {in_flight}")
    options = {
        "role": "import",
        "address": where,
        "near": near,
        "as": own,
        "name": f"{hostname()}/{own}",
        "run": secrets.token_hex(8),
        "device": device,
        "policy": policy,
        "in_flight": in_flight,
        "engine": engine,
        "key": _key(key, "import"),
        "timeout_s": seconds_from(0.1, timeout, "timeout"),
        "mode": permissions(mode, "mode"),
        "give_up_s": None if give_up is None else seconds_from(0, give_up, "give_up"),
    }
    slots = between_one_and(native.MAX_SLOTS, slots, "slots")
    # The ring is made later, when the exporter has been reached.
    _check_device("cuda" if device is None else device)
    return Import(f"import of {address}", options, slots)._start()


def keygen(folder: str | Path = ".") -> tuple[Path, Path]:
    """Makes two key files in `folder`, "bridge-export.key" and "bridge-import.key", which only this
    user may read (mode 0600).  Move the second one to the hosts of the importers.

    Raises FileExistsError, OSError, RingError if pyzmq is missing.
    """
    _need_zmq()
    from gpuring.bridge.network import keys

    return keys.make(Path(folder))


def _need_zmq() -> None:
    if find_spec("zmq") is None:
        raise RingError("bridges need pyzmq: pip install 'gpuring[bridge]'")


def _key(path: str | Path | None, side: str) -> str | None:
    if path is None:
        return None
    from gpuring.bridge.network import keys

    keys.read(path, side)
    return str(Path(path).resolve())


def _check_ring(name: str, owner: int | None) -> None:
    """Refuses a ring that no importer could have.  Whatever else is wrong with it may change."""
    try:
        header = native.attach_header(name, owner)
    except PermissionError:
        raise
    except (native.Missing, RingError, OSError):
        return
    header.disown()
    if diagnosis.is_service(header):
        raise diagnosis.only_engines_read(name)


def _check_device(device: str | int | None) -> None:
    """Raises DeviceError if there is no such GPU, ValueError, TypeError.  None may be anything."""
    if device in ("host", None):
        return
    from gpuring.memory.cuda import device_for

    device_for(device)
