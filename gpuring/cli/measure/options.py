"""Options that several benchmarks have."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ..options import count, positive
from .mps import MODES


def parser(prog: str, doc: str | None) -> argparse.ArgumentParser:
    """doc: the program's docstring, which is told as it is."""
    return argparse.ArgumentParser(
        prog=prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "host"),
        default="auto",
        help="what to measure: host memory, a GPU, or both where a GPU is usable (default: auto)",
    )


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
        help=f"of each measurement (default: {default:g})",
    )  # fmt: skip


def add_json(
    parser: argparse.ArgumentParser, help: str = "also write every figure, and the machine card"
) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help=help)


def add_from(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--from", dest="stored", type=Path, metavar="FILE", help=help)


def add_spoil(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--spoil",
        action="store_true",
        help="damage a frame on purpose, to see that the checks find it: the run must fail",
    )
