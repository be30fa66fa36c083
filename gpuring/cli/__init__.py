"""The `gpuring` command: one module a subcommand, each with add_arguments(parser) and run(args)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gpuring import __version__
from gpuring.cli import bench, clean, demo, doctor, inspect, keep, ls, metrics, tap, top
from gpuring.cli.trouble import CommandError
from gpuring.errors import RingError

COMMANDS = {
    "demo": (demo, "a real video through a ring: one producer process, four consumers"),
    "ls": (ls, "the rings of this host"),
    "inspect": (inspect, "who is in a ring, and what each holds"),
    "top": (top, "all rings, live: peers, rates, lag, lost, who holds what for how long"),
    "tap": (tap, "save frames of a ring as .npy or PNG, without slowing its producer"),
    "metrics": (metrics, "serve what rings are doing to Prometheus"),
    "doctor": (doctor, "whether rings work on this machine, tried out, and what to do if not"),
    "keep": (keep, "hold a ring open, so that producers can come and go"),
    "bench": (bench, "what a hand-over costs on this machine, verified and measured"),
    "clean": (clean, "remove rings whose processes are all dead"),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gpuring", description="Hand GPU frames between processes without copying them."
    )
    parser.add_argument("--version", action="version", version=f"gpuring {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (module, summary) in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # gpuring ls | head
        sys.stderr.close()
        return 0
    except (RingError, CommandError, ValueError, OSError) as error:
        print(f"gpuring {args.command}: {error}", file=sys.stderr)
        return 1
