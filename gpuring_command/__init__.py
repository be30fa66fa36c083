"""Where the command `gpuring` begins.

Importing it takes some tenths of a second, and a Ctrl-C in that time would show a traceback from
within NumPy.  The package gpuring loads NumPy before any of its modules, so this is no part of it.
"""

import signal


def main() -> int:
    """Until the command can say how it ends, Ctrl-C ends the process at once, as it does a program
    in C.  Where Ctrl-C is ignored, it stays so."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpuring import cli

    signal.signal(signal.SIGINT, handler)
    return cli.main()
