"""Workers decode photos, engines enlarge them, and workers encode the answers: over a ring, and
over what people use today.  Every answer is verified.  The file of --json describes the machine,
too."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from multiprocessing import forkserver
from typing import Any

from bench import mps
from bench import options as asked
from bench.frontends import example, measure, ways
from bench.frontends.transport import Setting
from gpuring.cli.measure import stored
from gpuring.cli.measure.card import machine_card
from gpuring.cli.options import Parser, Refused, count, positive

PHOTOS = 3
SCALE = 2
"""How many times as wide as a photo its answer is."""
PARTS = ("photos", "frames", "http", "deaths")
PRELOADED = (
    *("torch", "cupy", "cuda.bindings.driver", "zmq", "PIL.Image", "uvicorn"),
    *("starlette.applications", "gpuring", "bench.frontends.roles"),
)
"""What the fork server imports, once for all processes.  None of it uses a GPU when imported."""


def parser() -> argparse.ArgumentParser:
    options = Parser(prog="python -m bench.frontends", description=__doc__)
    add = options.add_argument
    add("--device", choices=("cuda", "host"), default="cuda")
    asked.add_mps(options, "off", "whether processes share the GPU through CUDA MPS (off)")
    asked.add_only(options, ways(), "WAY")
    add("--size", default="1920x1080", metavar="WIDTHxHEIGHT", help="size of photos (1920x1080)")
    add("--workers", type=count, default=4)
    add("--engines", type=count, default=2)
    add("--calls", type=count, default=4, help="requests that a worker has in flight (4)")
    asked.add_seconds(options, 3.0)
    add("--patience", type=positive, default=2.0, help="seconds until a request has failed (2)")
    add("--spin", action="store_true", help="wait for the GPU as CUDA does by default")
    add("--spawn", action="store_true", help="start processes without a fork server (slow)")
    add("--no-frames", action="store_true", help="send only requests with photos")
    add("--no-http", action="store_true", help="send only requests that workers make of files")
    add("--no-deaths", action="store_true", help="kill nobody")
    asked.add_json(options, "where the results go, with the machine card")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if every answer was right, whatever was killed."""
    options = parser()
    args = options.parse_args(argv)
    try:
        width, height = map(count, args.size.split("x"))
    except (ValueError, Refused):
        options.error("--size is WIDTHxHEIGHT, such as 1920x1080")
    if not args.no_deaths and min(args.workers, args.engines) < 2:
        options.error("to kill a worker and an engine takes two of each, or --no-deaths")
    setting = Setting(
        args.device,
        height,
        width,
        SCALE,
        args.workers,
        args.engines,
        args.calls,
        args.patience,
        "spawn" if args.spawn else "forkserver",
        args.spin,
    )
    plan = measure.Plan(args.seconds, not args.no_http, not args.no_frames, not args.no_deaths)
    if not args.spawn:
        multiprocessing.set_forkserver_preload(list(PRELOADED))
        forkserver.ensure_running()  # so that it imports while the right answers are computed
    load = example("upscale_load")
    jpegs = list(load.photos(PHOTOS, height, width))
    run: dict[str, Any] = {"machine": machine_card(), "setting": asdict(setting), "records": []}
    answers = load.Answers(jpegs, SCALE)
    for record in _records(setting, args, jpegs, answers, plan):
        run["records"].append(record)
        if args.json:
            stored.write(args.json, run)
        print(line(record), flush=True)
    return int(any(wrong(record) for record in run["records"]))


def _records(
    setting: Setting, args: argparse.Namespace, jpegs: Sequence[bytes], answers: Any,
    plan: measure.Plan,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    for mode in mps.MODES[args.mps]:
        if mode and not mps.installed():
            yield {"mps": True, "failed": "MPS is not installed"}
            continue
        with mps.environment(mode) as environment:
            for way in args.only or ways():
                if missing := measure.missing(way):
                    why = f"not installed: {', '.join(missing)}"
                    yield {"way": way, "mps": mode, "failed": why}
                    continue
                with contextlib.ExitStack() as stack:  # its processes end before the next begin
                    case = measure.Case(stack, way, setting, mode, environment)
                    record = measure.measured(case, jpegs, answers, plan)
                yield record


def wrong(record: dict[str, Any]) -> bool:
    parts = (record.get(part, {}) for part in PARTS)
    return "failed" in record or any(part.get("wrong") for part in parts)


def line(record: dict[str, Any]) -> str:
    """The record in a few lines."""
    lines = [f"{record.get('way', '')}{', MPS' * record['mps']}: {record.get('failed', '')}"]
    for part in PARTS[:-1]:
        if part in record:
            figures = (
                "{requests_per_s:7.1f}/s, p50 {p50_ms:6.1f} ms, p99 {p99_ms:6.1f} ms, "
                "CPU {cpu_ms:5.2f} ms, {wrong} wrong, failed {failed}".format(**record[part])
            )
            lines.append(f"  {part}: {figures}")
        for stages in ("stages_ms", "stages_cpu_ms"):
            if found := record.get(part, {}).get(stages):
                each = ", ".join(f"{stage} {ms:.2f}" for stage, ms in found.items())
                lines.append(f"    {stages}: {each}")
    for part in ("gpu_mib", "deaths", "done_s"):
        if part in record:
            lines.append(f"  {part}: {record[part]}")
    return "\n".join(lines)


if __name__ == "__main__":
    asked.run(main)
