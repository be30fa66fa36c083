"""Request and response over rings, between many clients and some engines.

    serve   -> Server.take -> Batch of Calls -> Call.answer, Call.fail, Call.part
    connect -> Client.request -> PendingCall.result, PendingCall.parts

    the client's side                     the engine's side
    client.py     a client                engine.py     run and take, of several services, too
    mailbox.py    its place in a service  server.py     one service
    pending.py    a call                  call.py       a call, and batches of calls
    tasks.py      in event loops          work.py       the user's function
    assigning.py  values in one line      stacking.py   a batch as arrays, and arrays as answers
                                          metrics.py    what only an engine knows of its calls
                                          prometheus.py … for Prometheus
    _calls, _sender, _inbox, _books,      delivery.py   where answers go
    _sleepers                             _engine, _taken, _reach, _patience

opening.py has serve and connect, streaming.py answers in parts, and readiness.py whether a service
can be asked.  wire.py and _envelopes have what both sides agree on.  Files that begin with an
underscore are compiled: they have what is on the path of every call.

Requests go through one ring with one subscription, which the engines share.  Each client has a ring
of its own for its answers.  docs/services.md is the guide.  docs/decisions/0006 says why it is so.
"""

from gpuring.service.call import Batch, Call
from gpuring.service.client import Client
from gpuring.service.engine import run, take
from gpuring.service.metrics import ClientMetrics, Histogram, Metrics
from gpuring.service.opening import connect, serve
from gpuring.service.pending import PendingCall
from gpuring.service.readiness import Health, health
from gpuring.service.server import Counts, Server
from gpuring.service.streaming import Parts

__all__ = [
    "Batch",
    "Call",
    "Client",
    "ClientMetrics",
    "Counts",
    "Health",
    "Histogram",
    "Metrics",
    "Parts",
    "PendingCall",
    "Server",
    "connect",
    "health",
    "run",
    "serve",
    "take",
]
