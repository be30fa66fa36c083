"""Find out whether rings work on this machine, and what to do if not.

It looks at the host, the driver and the GPUs.  Then it hands real frames from one process to
another.  The exit status is 1 if anything failed.  A machine without a GPU is no failure.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any, get_args

import gpuring
from gpuring.cli.measure.crew import Crew, RoleFailed
from gpuring.cli.options import gpu_number
from gpuring.cli.text import columns
from gpuring.printable import counted

from . import fullness, gpu, host, network, probe
from .finding import Finding, Level, in_lines

DRIVER_PATIENCE_S = 60.0
NIXL_PATIENCE_S = 60.0
ON_GPU = ("probe: memory", "probe: vmm", "probe: event", "probe: timeline", "probe: pinned")
MAX_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--no-probe", action="store_true", help="only look; start no ring")
    parser.add_argument(
        "--device",
        type=gpu_number,
        metavar="cuda:N",
        help="the GPU to probe, by CUDA's number for it here (default: cuda:0)",
    )


def run(args: argparse.Namespace) -> int:
    if args.no_probe and args.device is not None:
        raise ValueError("--device says which GPU to probe, and with --no-probe none is probed")
    findings = []
    width = min(columns() or MAX_WIDTH, MAX_WIDTH)
    for finding in examine(args.device or 0, probing=not args.no_probe):
        findings.append(finding)
        if not args.json:
            print(in_lines(finding, width), flush=True)
    counts = {level: sum(f.level == level for f in findings) for level in get_args(Level)}
    if args.json:
        document = {
            "gpuring": gpuring.__version__,
            "counts": counts,
            "findings": [dataclasses.asdict(finding) for finding in findings],
        }
        print(json.dumps(document, indent=2))
    else:
        warnings = counted(counts["warn"], "warning")
        print(f"\n{counts['ok']} ok, {counts['skip']} skipped, {warnings}, {counts['fail']} failed")
    return 1 if counts["fail"] else 0


def examine(device: int, *, probing: bool) -> Iterator[Finding]:
    """All findings, as they come."""
    this = host.look()
    room = True
    for check in host.CHECKS:
        finding = _judged(check, this)
        room = room and (finding.level != "fail" or check is not host.shm_size)
        yield finding
    if written := [one.name for one in this.rings if one.creator_alive and one.producers]:
        yield _judged(fullness.full_rings, fullness.look(written))
    try:
        with Crew() as crew:
            seen: gpu.Gpus | None = crew.call(gpu.look, patience_s=DRIVER_PATIENCE_S)
    except RoleFailed as error:
        seen = None
        fix = "see nvidia-smi and dmesg | grep -i nvrm; reboot if nvidia-smi hangs, too"
        yield Finding(
            "fail", "GPU driver", f"a process that asks it hangs or dies ({error.last_line})", fix
        )
    if seen is not None:
        yield _judged(gpu.driver, seen)
        if seen.gpus:
            yield from (f for check in gpu.CHECKS if (f := _judged(check, seen)) is not None)
    yield from _bridges(bool(seen and seen.gpus))
    if not probing:
        return
    if not room:
        found = f"skipped: no ring can be made in {this.shm.path}"
        yield Finding("warn", "probes", found, f"first fix {this.shm.path}, as said above")
        return
    yield from probe.on_host()
    yield from _probe_gpu(seen, device)


def _bridges(gpus: bool) -> Iterator[Finding]:
    try:
        with Crew() as crew:
            seen = crew.call(network.look, gpus, patience_s=NIXL_PATIENCE_S)
    except RoleFailed as error:
        fix = "bridges use ZeroMQ if NIXL is uninstalled; please report it"
        yield Finding(
            "warn", "bridge", f"a process that asks NIXL hangs or dies ({error.last_line})", fix
        )
        return
    yield from (f for check in network.CHECKS if (f := _judged(check, seen)) is not None)


def _probe_gpu(seen: gpu.Gpus | None, device: int) -> Iterator[Finding]:
    if seen is None or not seen.gpus:
        why = "no GPU" if seen else "the driver does not answer"
    elif seen.cupy_error:
        why = "CuPy cannot be used"
    elif device >= len(seen.gpus):
        found = f"there is no GPU {device}"
        fix = f"choose --device cuda:0 … cuda:{len(seen.gpus) - 1}"
        yield Finding("fail", ON_GPU[0], found, fix)
        return
    else:
        chosen = seen.gpus[device]
        timeline = chosen.stream_words and chosen.host_register
        yield from probe.on_gpu(device, vmm=chosen.vmm, timeline=timeline)
        pairs = [(other, one.ordinal) for one in seen.gpus for other in one.peers]
        if pairs:
            yield from probe.between_gpus(pairs)
        return
    yield from (Finding("skip", what, why) for what in ON_GPU)


def _judged(check: Callable[[Any], Any], facts: Any) -> Any:
    """A check that breaks on a machine that nobody thought of is a finding too."""
    try:
        return check(facts)
    except Exception as error:
        fix = "please report it; the other findings hold"
        return Finding("warn", check.__name__, f"the check itself failed: {error!r}", fix)
