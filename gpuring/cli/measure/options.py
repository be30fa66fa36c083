"""Options that `gpuring bench` and the benchmarks of the source tree have."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "host"),
        default="auto",
        help="what to measure: host memory, a GPU, or both where a GPU is usable (default: auto)",
    )


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
