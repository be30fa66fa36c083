"""python -m bench: transitions, throughput, latency, waiting and recovery of a ring, beside the
leanest possible ring in C (floor) and what people use today (the rivals). Frames are verified
before anything is timed. Writes JSON and a self-contained report.html.
"""

# `measure` makes every figure of a run.  `report` and `plots` turn the JSON into HTML.  `targets`
# has the bounds.  Each of the other modules measures: its run(settings, crew) yields figures.

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuring.cli.bench import summary
from gpuring.cli.measure import stored
from gpuring.cli.measure.figures import line
from gpuring.cli.options import Parser
from gpuring.cli.trouble import CommandError
from gpuring.errors import RingError

from . import report
from .measure import GROUPS, measure
from .options import add_device, add_from, add_json, add_mps, add_only, add_spoil


def parser() -> argparse.ArgumentParser:
    options = Parser(prog="python -m bench", description=__doc__)
    options.add_argument("--quick", action="store_true", help="about a minute instead of eight")
    add_device(options)
    add_mps(
        options,
        None,
        "whether processes share the GPU through CUDA MPS (default: both where that can be had; "
        "with --quick as the environment has it)",
    )
    add_only(options, GROUPS, "GROUP")
    options.add_argument(
        "--rivals", action="store_true", help="also torch queues and what else is installed"
    )
    options.add_argument(
        "--out",
        type=Path,
        default=Path("gpuring-bench"),
        metavar="DIR",
        help="where report.html, bench.json and the plots go (default: gpuring-bench)",
    )
    add_json(options, "keep the figures here, and not in bench.json of DIR")
    add_from(options, "make the report of this JSON instead of measuring")
    add_spoil(options)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if everything that was measured was verified.  Returns 1 if wrong data crossed
    somewhere, or if the options cannot be met."""
    asked = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(asked)
    try:
        return _run(args, asked)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # python -m bench | head
        sys.stderr.close()
        return 0
    except (RingError, CommandError, ValueError, OSError) as error:
        print(f"python -m bench: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace, asked: Sequence[str]) -> int:
    if args.stored:
        run, source = stored.load(args.stored), args.stored
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--out {args.out}: {error.strerror}") from None
    if not args.stored:
        source = args.json or args.out / "bench.json"
        stored.must_be_writable(source, "--json" if args.json else "--out")
        run = stored.measured(measure(args), asked, lambda figure: print(line(figure), flush=True))
        run.save(source)
    page = report.write(run, args.out)
    print(
        "", summary.text(run, report.on_gpu(run.figures)), "", report.verdict(run.figures), sep="\n"
    )
    print(f"{run.seconds:.0f} s; {page}, {source}")
    for figure in run.failed:
        print(f"python -m bench: {line(figure)}", file=sys.stderr)
    return run.status


if __name__ == "__main__":
    sys.exit(main())
