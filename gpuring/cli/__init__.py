"""The `gpuring` command: one module a subcommand, each with add_arguments(parser) and run(args).

absent, durable, ending, measure, options, owners, services, text and trouble are not commands, but
are used by several.  Ctrl-C ends a command here, unless the command has to say what it has done.
"""

from __future__ import annotations

import argparse
import io
import select
import sys
from collections.abc import Sequence

from gpuring import __version__
from gpuring.cli import (
    bench,
    bridge,
    clean,
    demo,
    doctor,
    graph,
    health,
    inspect,
    keep,
    ls,
    metrics,
    record,
    replay,
    subscribe,
    tap,
    top,
    trace,
    unsubscribe,
    why,
)
from gpuring.cli.options import Parser
from gpuring.cli.text import columns, complain, silence, wrap
from gpuring.cli.trouble import COULD_NOT_LOOK, CannotLook, CommandError, message
from gpuring.errors import RingError
from gpuring.native import VERSION

COMMANDS = {
    "demo": (demo, "send a real video through a ring, from one process to four"),
    "ls": (ls, "list the rings of this host"),
    "inspect": (inspect, "show who is in a ring, and what each one holds"),
    "why": (why, "say whether anything is stuck, who is to blame, and what to do"),
    "graph": (graph, "draw all rings and processes, with what is stuck in red"),
    "top": (top, "show all rings, live: rates, lag, losses, and what each peer holds"),
    "trace": (trace, "write what all processes of a pipeline do into a trace for Perfetto"),
    "tap": (tap, "save frames of a ring as .npy or PNG, without slowing its producer"),
    "record": (record, "record rings into an MCAP file, without slowing their producers"),
    "replay": (replay, "make the rings of a recording again, and publish its frames"),
    "health": (health, "say whether a service can be asked, for load balancers"),
    "metrics": (metrics, "serve what rings are doing to Prometheus, or send it by OTLP"),
    "doctor": (doctor, "find out whether rings work on this machine, and what to do if not"),
    "keep": (keep, "hold a ring or a service open, so that others can come and go"),
    "subscribe": (subscribe, "make a subscription that stays when its readers come and go"),
    "unsubscribe": (unsubscribe, "end such a subscription"),
    "bridge": (bridge, "carry a ring to other hosts"),
    "bench": (bench, "measure what a hand-over costs on this machine"),
    "clean": (clean, "remove rings whose processes are all dead"),
}
EXAMPLES = {
    "demo": ("gpuring demo", "gpuring demo holiday.mp4 --seconds 10 --device host"),
    "ls": ("gpuring ls", "gpuring ls cam0 --json"),
    "inspect": ("gpuring inspect cam0",),
    "why": ("gpuring why", "gpuring why cam0 --after 10", "gpuring why --json"),
    "graph": ("gpuring graph", "gpuring graph --watch", "gpuring graph cam0 --svg cam0.svg"),
    "top": ("gpuring top", "gpuring top cam0 --interval 0.2", "gpuring top --once | grep DEAD"),
    "trace": (
        "gpuring trace cam0 seen0 --seconds 5 --out pipeline.pftrace",
        "gpuring trace --out all.pftrace",
    ),
    "tap": ("gpuring tap cam0 --out frames --format png --count 3 --rate 1",),
    "record": (
        "gpuring record cam0 lidar --out run.mcap",
        "gpuring record cam0 --out run.mcap --lossless --durable recorder --follow",
    ),
    "replay": (
        "gpuring replay run.mcap --as cam0=test0 --readers 1",
        "gpuring replay run.mcap --rate max --from 10 --to 12.5",
    ),
    "health": ("gpuring health classify", "gpuring health classify --within 30 --json"),
    "metrics": (
        "gpuring metrics --port 9750",
        "gpuring metrics --once",
        "gpuring metrics --otlp http://localhost:4318",
    ),
    "doctor": ("gpuring doctor", "gpuring doctor --device cuda:1 --json"),
    "keep": (
        "gpuring keep cam0 --slots 8 --shape 1080,1920,3 --dtype uint8 --meta pts:i8",
        "gpuring keep nv12 --slots 8 --field y:u1:1080,1920 --field uv:u1:540,960,2",
        "gpuring keep classify --request f4:3,224,224 --response f4:1000",
    ),
    "subscribe": ("gpuring subscribe cam0 recorder --patience 60",),
    "unsubscribe": ("gpuring unsubscribe cam0 recorder",),
    "bridge": (
        "gpuring bridge keygen",
        "gpuring bridge export cam0 --listen 10.0.0.5:9760 --key bridge-export.key",
        "gpuring bridge import 10.0.0.5:9760/cam0 --key bridge-import.key",
    ),
    "bench": ("gpuring bench",),
    "clean": ("gpuring clean --dry-run", "gpuring clean cam0"),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="replace")  # such as a lag of "–" in Latin-1
    try:
        status = int(args.run(args))
        print(end="", flush=True)  # sys.stdout is None where it was closed
        return status
    except KeyboardInterrupt:
        return 130
    except (RingError, CommandError, ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():  # gpuring ls | head
            silence(sys.stdout)
            return 0
        complain(f"gpuring {args.command}: {message(error, vars(args))}")
        if isinstance(error, CannotLook):
            return COULD_NOT_LOOK
        wrongly_asked = isinstance(error, ValueError) and not isinstance(error, UnicodeError)
        return 2 if wrongly_asked else 1  # 2 as argparse does


def _nobody_reads() -> bool:
    """Whether the pipe that takes the output is the one that is broken."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return bool(output.poll(0))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpuring",
        description="Hand GPU frames between processes without copying them.",
        epilog="`gpuring COMMAND --help` says more about a command, with an example.",
    )
    parser.add_argument(
        "--version", action="version", version=f"gpuring {__version__}, layout {VERSION}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        subparser = commands.add_parser(
            name,
            help=summary,
            description=_description(module.__doc__ or ""),
            epilog="\n  ".join([f"example{'s'[: len(EXAMPLES[name]) > 1]}:", *EXAMPLES[name]]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def _description(text: str) -> str:
    """A module's docstring as paragraphs for the terminal."""
    width = min(columns() or 80, 100) - 2
    return "\n\n".join(wrap(" ".join(part.split()), width) for part in text.strip().split("\n\n"))
