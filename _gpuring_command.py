"""The `gpuring` command, up to where its package is imported.

It lies beside the package, because to import anything in there imports NumPy first.  A Ctrl-C
meanwhile would show a traceback of NumPy.
"""

import os
import signal


def main() -> int:
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from gpuring.cli import main

    signal.signal(signal.SIGINT, before)
    return main()
