"""The process that does the work of one side of a bridge.

When anything happens that it does not expect, it ends without leaving its rings cleanly.  Then its
frames and claims are cleared like those of a dead process, and the supervisor starts another one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from typing import NoReturn

from gpuring.bridge.exporter.worker import Exporter
from gpuring.bridge.importer.worker import Importer
from gpuring.bridge.worker import Fatal, SupervisorPipe
from gpuring.memory import freed

_PR_SET_PDEATHSIG = 1
_KEPT = 64 << 20
"""How many bytes of free memory stay with a worker for the next message."""
_BELOW = 4 << 20
"""Memory from this length on is not kept.  A message has at most 1 MiB."""


def main() -> NoReturn:
    """Runs a worker as its supervisor says in the first line."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the supervisor says when it is time to end
        signal.signal(number, signal.SIG_IGN)
    # A fork of the supervisor may have its end of our input, which is not at its end then.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    freed.keep(_KEPT, below=_BELOW)
    supervisor = SupervisorPipe()
    options = supervisor.first()
    status = 1
    try:
        if options["role"] == "export":
            Exporter(options, supervisor).run()
        else:
            Importer(options, supervisor).run()
        status = 0
    except Fatal as error:
        supervisor.say(fatal=str(error))
    except BaseException as error:
        sys.stderr.write(traceback.format_exc())
        supervisor.log(f"its worker failed: {type(error).__name__}: {error}")
    sys.stderr.flush()
    os._exit(status)
