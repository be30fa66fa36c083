"""A shared-memory ring through which processes of one host hand GPU frames to each other.  No frame
is copied.

    create, attach, unlink, ls, clean      rings by name
    Ring                                   one process's handle: producer(), consumer(), stats()
    Producer -> WriteSlot                  claim, write, publish
    Consumer -> ReadSlot                   acquire or latest, read, release
    select                                 waits at several of them
    align -> Aligned                       frames of several that belong together
    serve -> Server, connect -> Client     request and response
    take, run                              one engine of several services
    health                                 whether a service can be asked
    exit_on_sigterm                        SIGTERM ends the program cleanly
    RingError and the classes below it     what can go wrong

Importing this touches no CUDA.
"""

from gpuring.errors import (
    CallCancelled,
    CallFailed,
    DeviceError,
    EndOfStream,
    FrameTorn,
    OverrunWarning,
    PeerLost,
    ProducerDied,
    RingClosed,
    RingError,
    RingExists,
    RingFull,
    RingIncompatible,
    RingNotFound,
    RingTimeout,
    StaleViewWarning,
    TooManyPeers,
)

try:
    from gpuring.native import annotate
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("gpuring."):
        raise
    raise ImportError(
        f"{error.name} is not built. Python has found the sources of gpuring in {__path__[0]}: "
        "start it in another folder, or build them there with `pip install -e .`"
    ) from error
if annotate is None:  # the end of an interpreter has emptied the extension modules
    raise ImportError("an interpreter of this process that has ended had imported gpuring")
from gpuring.registry.directory import unlink
from gpuring.registry.leftovers import clean
from gpuring.registry.survey import ls
from gpuring.ring.align import Aligned, align
from gpuring.ring.attaching import attach
from gpuring.ring.batch import ReadBatch, WriteBatch
from gpuring.ring.consumer import Consumer
from gpuring.ring.creation import create
from gpuring.ring.origin import Origin
from gpuring.ring.producer import Producer
from gpuring.ring.read_slot import ReadSlot
from gpuring.ring.ring import Ring
from gpuring.ring.shutdown import exit_on_sigterm
from gpuring.ring.waiting import select
from gpuring.ring.write_slot import WriteSlot
from gpuring.service import Call, Client, PendingCall, Server, connect, health, run, serve, take

__version__ = "0.1.0"

__all__ = [
    "Aligned",
    "Call",
    "CallCancelled",
    "CallFailed",
    "Client",
    "Consumer",
    "DeviceError",
    "EndOfStream",
    "FrameTorn",
    "Origin",
    "OverrunWarning",
    "PeerLost",
    "PendingCall",
    "Producer",
    "ProducerDied",
    "ReadBatch",
    "ReadSlot",
    "Ring",
    "RingClosed",
    "RingError",
    "RingExists",
    "RingFull",
    "RingIncompatible",
    "RingNotFound",
    "RingTimeout",
    "Server",
    "StaleViewWarning",
    "TooManyPeers",
    "WriteBatch",
    "WriteSlot",
    "align",
    "annotate",
    "attach",
    "clean",
    "connect",
    "create",
    "exit_on_sigterm",
    "health",
    "ls",
    "run",
    "select",
    "serve",
    "take",
    "unlink",
]


def __dir__() -> list[str]:
    return __all__
