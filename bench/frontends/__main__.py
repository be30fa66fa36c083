"""Workers decode photos, engines enlarge them, workers encode the answers: over a ring, and over
what people use today.  Every answer is verified.  Writes JSON with a description of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import mps
from bench.frontends import example, measure, ways
from bench.frontends.transport import Setting
from gpuring.cli.bench.card import machine_card
from gpuring.cli.bench.mps import installed

PHOTOS = 6


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m bench.frontends", description=__doc__)
    add = options.add_argument
    add("--device", choices=("cuda", "host"), default="cuda")
    add("--mps", choices=("off", "on", "both"), default="off")
    add("--only", nargs="+", choices=list(ways()), metavar="WAY", help=f"of {', '.join(ways())}")
    add("--size", default="1920x1080", metavar="WIDTHxHEIGHT", help="of photos (1920x1080)")
    add("--scale", type=int, default=2, help="how many times as wide the answers are (2)")
    add("--workers", type=int, default=4)
    add("--engines", type=int, default=2)
    add("--calls", type=int, default=4, help="requests of a worker in flight (4)")
    add("--seconds", type=float, default=3.0, help="of each measurement (3)")
    add("--patience", type=float, default=2.0, help="seconds after which a request failed (2)")
    add("--no-http", action="store_true", help="only requests that workers make of files")
    add("--no-deaths", action="store_true", help="kill nobody")
    add("--out", type=Path, default=Path("frontends.json"), metavar="FILE")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if every answer was right, whatever was killed."""
    options = parser()
    args = options.parse_args(argv)
    try:
        width, height = map(int, args.size.split("x"))
    except ValueError:
        options.error("--size is WIDTHxHEIGHT, such as 1920x1080")
    if not args.no_deaths and min(args.workers, args.engines) < 2:
        options.error("to kill a worker and an engine takes two of each, or --no-deaths")
    setting = Setting(
        args.device,
        height,
        width,
        args.scale,
        args.workers,
        args.engines,
        args.calls,
        args.patience,
    )
    plan = measure.Plan(args.seconds, not args.no_http, not args.no_deaths)
    load = example("upscale_load")
    jpegs = list(load.photos(PHOTOS, height, width))
    run: dict[str, Any] = {"machine": machine_card(), "setting": asdict(setting), "records": []}
    with contextlib.ExitStack() as everything:
        cases = list(_cases(everything, setting, args, run["records"]))
        answers = load.Answers(jpegs, args.scale)
        for case, _ in cases:
            case.is_imported()
        for case, closing in cases:
            with closing:  # its processes end before the next one begins
                run["records"].append(measure.measured(case, jpegs, answers, plan))
            args.out.write_text(json.dumps(run, indent=1))
            print(line(run["records"][-1]), flush=True)
    args.out.write_text(json.dumps(run, indent=1))
    return int(any(wrong(record) for record in run["records"]))


def _cases(
    everything: contextlib.ExitStack, setting: Setting, args: argparse.Namespace, records: list[Any]
) -> Iterator[tuple[measure.Case, contextlib.ExitStack]]:
    for mode in {"off": (False,), "on": (True,), "both": (False, True)}[args.mps]:
        environment = mps.without()
        if mode:
            if not installed():
                records.append({"mps": True, "failed": "MPS is not installed"})
                continue
            environment = everything.enter_context(mps.daemon())
        for way in args.only or ways():
            if missing := measure.missing(way):
                why = f"not installed: {', '.join(missing)}"
                records.append({"way": way, "mps": mode, "failed": why})
                continue
            closing = everything.enter_context(contextlib.ExitStack())
            yield measure.Case(closing, way, setting, mode, environment), closing


def wrong(record: dict[str, Any]) -> bool:
    parts = (record.get(part, {}) for part in ("files", "http", "deaths"))
    return "failed" in record or any(part.get("wrong") for part in parts)


def line(record: dict[str, Any]) -> str:
    name = f"{record['way']}{', MPS' * record['mps']}"
    if "failed" in record:
        return f"{name:30} {record['failed']}"
    cells = [f"{name:30}"]
    for part in ("files", "http"):
        if part in record:
            cells.append(
                "{}: {requests_per_s:7.1f}/s, p50 {p50_ms:6.1f}, p99 {p99_ms:6.1f}, "
                "CPU {cpu_ms:5.1f} ms, {wrong} wrong, failed {failed};".format(part, **record[part])
            )
    cells.append(f"GPU {record['gpu_mib']} MiB;")
    cells += [f"{stage} {ms:.2f}," for stage, ms in record["stages_ms"].items()]
    if "deaths" in record:
        cells.append(f"deaths {record['deaths']}")
    return " ".join(cells)


if __name__ == "__main__":
    sys.exit(main())
