"""The whole benchmark: all results, and then the pages that are made from them.

    python -m bench.whole [--only NAME …] [--into bench/results]

A NAME is a module of this package, and its results are NAME.json.  One that fails, or that this
machine has no hardware for, keeps the results that it had.  It takes about a quarter of an hour
and wants a machine with a GPU that does nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuring.cli.measure import stored
from gpuring.cli.trouble import CommandError

from . import options, page

BENCHMARKS: dict[str, tuple[str, ...]] = {
    "bench": ("bench", "--rivals"),
    "peers": ("bench.peers",),
    "services": ("bench.services",),
    "spin": ("bench.spin",),
    "loader": ("bench.loader",),
    "memory_kinds": ("bench.memory_kinds",),
    "pinned": ("bench.pinned",),
    "two_gpus": ("bench.two_gpus",),
}
"""Each with its command."""


def run(names: Iterable[str], into: Path, commands: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Runs the benchmarks.  Yields those whose results were not replaced."""
    with TemporaryDirectory() as folder:
        for name in names:
            found = Path(folder, f"{name}.json")
            print(f"== {name}", flush=True)
            ended = subprocess.run(
                [sys.executable, "-m", *commands[name], "--json", str(found)], check=False
            )
            if ended.returncode == 0 and has_figures(found):
                (into / found.name).write_text(found.read_text())
            else:
                yield name


def has_figures(path: Path) -> bool:
    try:
        return any(figure.values is not None for figure in stored.load(path).figures)
    except CommandError:
        return False


def main() -> int:
    parser = options.parser("python -m bench.whole", __doc__)
    options.add_only(parser, BENCHMARKS, "NAME")
    parser.add_argument(
        "--into", type=Path, default=page.RESULTS, metavar="DIR",
        help="where the results are put (default: bench/results, and the pages are written)",
    )  # fmt: skip
    asked = parser.parse_args()
    missing = list(run(asked.only or BENCHMARKS, asked.into, BENCHMARKS))
    if asked.into.resolve() == page.RESULTS:
        page.write()
    if missing:
        print(f"python -m bench.whole: not replaced: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    options.run(main)
