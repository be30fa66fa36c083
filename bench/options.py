"""Options that several of these benchmarks have, and that `gpuring bench` does not have, and how
these programs end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

from gpuring.cli.measure.options import add_device, add_from, add_json, add_spoil
from gpuring.cli.options import Parser, count, positive
from gpuring.cli.trouble import CommandError
from gpuring.errors import DeviceError

from .mps import MODES

__all__ = [
    "add_device", "add_from", "add_json", "add_mps", "add_only", "add_rounds", "add_seconds",
    "add_spoil", "parser", "run",
]  # fmt: skip


def parser(prog: str, doc: str | None) -> argparse.ArgumentParser:
    """doc: the program's docstring, which --help shows as it is."""
    return Parser(prog=prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_mps(parser: argparse.ArgumentParser, default: str | None, help: str) -> None:
    parser.add_argument("--mps", choices=MODES, default=default, help=help)


def add_only(parser: argparse.ArgumentParser, names: Iterable[str], metavar: str) -> None:
    each = list(names)
    parser.add_argument(
        "--only", nargs="+", choices=each, metavar=metavar, help=f"of {', '.join(each)}"
    )


def add_rounds(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--rounds", type=count, default=default, metavar="N", help=f"(default: {default})"
    )


def add_seconds(parser: argparse.ArgumentParser, default: float) -> None:
    parser.add_argument(
        "--seconds", type=positive, default=default, metavar="S",
        help=f"duration of each measurement (default: {default:g})",
    )  # fmt: skip


def run(main: Callable[[], int | None]) -> NoReturn:
    """Ends the program with what `main` returns, or with a sentence if it cannot do as asked."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (CommandError, DeviceError) as error:
        sys.exit(str(error))
