"""The process that does the work of one side of a bridge.

When anything happens that it does not expect, it ends without leaving its rings in order.  Then its
frames and claims go where those of the dead go, and the supervisor starts another one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from typing import NoReturn

from gpuring.bridge.exporter import Exporter
from gpuring.bridge.importer import Importer
from gpuring.bridge.worker import Fatal, Up

_PR_SET_PDEATHSIG = 1


def main() -> NoReturn:
    """Runs a worker as its supervisor says in the first line."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the supervisor says when it is time to end
        signal.signal(number, signal.SIG_IGN)
    # A fork of the supervisor may have its end of our input, which is not at its end then.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    up = Up()
    told = up.first()
    status = 1
    try:
        if told["role"] == "export":
            Exporter(told, up).run()
        else:
            Importer(told, up).run()
        status = 0
    except Fatal as error:
        up.say(fatal=str(error))
    except BaseException as error:
        sys.stderr.write(traceback.format_exc())
        up.log(f"its worker failed: {type(error).__name__}: {error}")
    sys.stderr.flush()
    os._exit(status)
