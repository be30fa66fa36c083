"""Send a real video through a ring, and check what arrives.

One process decodes the video at its own rate.  Four processes read it: an analyser that sees every
frame, two workers that share edge detection, and a viewer that takes the newest frame.  At the end
a second, independent decode checks whether each of them saw what it should have seen.

The exit status is 0 for PASS and 1 for FAIL.
"""

# clip        the video                    roles    what each process does
# arithmetic  what is computed per frame   arrays   the library that computes it
# records     what they report             crew     the processes together
# verdict     against a second decode      table    the live table
# pictures, figures                        PNG and JSON files

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import gpuring
from gpuring.cli.options import add_order, count, positive, slots
from gpuring.cli.text import columns, complain, wrap
from gpuring.cli.trouble import CommandError, message, need
from gpuring.memory import frameworks, gpus

if TYPE_CHECKING:
    from .records import Job, Outcome
    from .verdict import Verdict

PASSED, FAILED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "video", nargs="?", type=Path, help="a video file (default: five seconds of Big Buck Bunny)"
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "host"),
        default="auto",
        help="where the frames lie (default: on a GPU if one can be used, else on the host)",
    )
    add_order(parser)
    parser.add_argument(
        "--slots", type=slots, default=8, metavar="N", help="frames in flight (default: 8)"
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        metavar="S",
        help="play only the first S seconds of the video (default: all of it)",
    )
    parser.add_argument(
        "--loops", type=count, default=1, metavar="N", help="play it N times (default: once)"
    )
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--fps",
        type=positive,
        metavar="R",
        help="frames published per second (default: the video's own rate)",
    )
    pace.add_argument(
        "--flat-out",
        action="store_true",
        help="publish as fast as the readers that see every frame allow",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("gpuring-demo"),
        metavar="DIR",
        help="the folder for two pictures and figures.json (default: gpuring-demo)",
    )
    parser.add_argument("--plain", action="store_true", help="show no live table")
    parser.add_argument(
        "--timeout",
        type=positive,
        default=120.0,
        metavar="S",
        help="seconds without any progress after which the run has failed (default: 120)",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the demo: 0 passed, 1 failed, 2 could not be started, 130 interrupted."""
    try:
        need("av", "rich", "matplotlib", "PIL", extra="demo")
    except CommandError as error:
        return _complain(str(error))

    from ..measure.signals import terminable
    from .clip import ClipError
    from .crew import CrewError

    try:
        with terminable():
            return _play(args)
    except CrewError as error:
        _complain(str(error))
        return FAILED
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except (gpuring.RingError, ClipError, CommandError, OSError, ValueError) as error:
        return _complain(message(error, vars(args)))


def _play(args: argparse.Namespace) -> int:
    from ..measure.signals import uninterrupted
    from .clip import SHIPPED, open_clip
    from .records import Job

    # Libraries load in here too: not all of them stand an interrupt half-way.
    with uninterrupted():
        clip = open_clip(args.video or SHIPPED, args.seconds)
        args.out.mkdir(parents=True, exist_ok=True)
        device, memory_why = _choose_device(args.device)
        # The parent owns the ring and is no peer: it outlives every process of the run.
        owned = gpuring.create(
            f"demo-{os.getpid()}",
            slots=args.slots,
            shape=clip.shape,
            dtype="uint8",
            meta=[("pts", "i8")],
            device=device,
            sync=args.sync,
            gate=args.gate,
        )
    with owned as ring:
        why = {"memory": memory_why, "sync": _sync_why(ring, args)}
        fps = None if args.flat_out else args.fps or clip.rate
        _say(_first_line(ring, why))
        _say(
            f"{clip.path.name}: {clip.width} × {clip.height}, {clip.codec}. {clip.credit}".rstrip()
        )
        _say(_pace(fps, clip.rate))
        arrays = "numpy" if ring.memory == "host" else _on_gpu()
        job = Job(ring=ring.name, clip=clip, loops=args.loops, fps=fps, arrays=arrays)
        outcome = _run_crew(args, job, ring)
    return PASSED if _judge(args, outcome, why) else FAILED


def _run_crew(args: argparse.Namespace, job: Job, ring: gpuring.Ring) -> Outcome:
    from ..measure.signals import uninterrupted

    with uninterrupted():
        from rich.console import Console

        from .crew import started
        from .records import Outcome
        from .table import LiveTable, final

    console = Console(highlight=False)
    with started(job, args.timeout) as crew:
        with LiveTable(console, crew, live=console.is_terminal and not args.plain) as table:
            reports = crew.listen(lambda: table.update(ring.stats()))
        outcome = Outcome(
            clip=job.clip,
            memory=ring.memory,
            sync=ring.sync,
            gate=ring.gate,
            slots=ring.slots,
            fps=job.fps,
            producer=reports["producer"],
            analyser=reports["analyser"],
            edges=(reports["edges 1"], reports["edges 2"]),
            viewer=reports["viewer"],
            max_lag=table.max_lag,
        )
    print(final(outcome), flush=True)
    return outcome


def _judge(args: argparse.Namespace, outcome: Outcome, why: dict[str, str]) -> bool:
    """Checks the run, writes its files, prints the verdict."""
    from ..measure.signals import uninterrupted

    with uninterrupted():
        from . import figures, pictures, verdict

    started = time.monotonic()
    judged = verdict.check(
        verdict.reference(outcome.clip),
        args.loops,
        outcome.producer,
        outcome.analyser,
        outcome.edges,
        outcome.viewer,
    )
    seconds = time.monotonic() - started
    sheet, plot = args.out / "contact-sheet.png", args.out / "latency.png"
    pictures.contact_sheet(sheet, outcome, judged)
    pictures.latency_plot(plot, outcome)
    written = args.out / "figures.json"
    figures.write(written, outcome, judged, why)
    _say(f"written: {sheet}, {plot}, {written}")
    _print_verdict(judged, seconds)
    return judged.passed


def _print_verdict(judged: Verdict, seconds: float) -> None:
    _say(f"compared with an independent decode ({seconds:.1f} s):")
    for check in judged.checks:
        mark = "ok    " if check.passed else "FAILED"
        _say(f"  {mark}  {check.who:<9} {check.detail}", " " * 20)
    failures = sum(not check.passed for check in judged.checks)
    _say("verdict: PASS" if judged.passed else f"verdict: FAIL ({failures} of 4 checks)")


def _choose_device(asked: str) -> tuple[str, str]:
    """The ring's device, and why; DeviceError if a GPU was asked for and is not usable."""
    if asked == "host":
        return "host", "--device host"
    from gpuring.memory import cuda

    usable, reason = cuda.available()
    if usable:
        usable, reason = _can_compute()
    if usable:
        return "cuda", f"--device cuda, {reason}" if asked == "cuda" else f"found {reason}"
    if asked == "cuda":
        raise gpuring.DeviceError(f"--device cuda: {reason}")
    # The advice to use the host is followed already.
    why = re.split(r"[;.,]? (?:or use|[Uu]se) device='host'", reason)[0]
    return "host", f"no usable GPU: {why}"


def _on_gpu() -> str:
    """The library that computes on a GPU."""
    return "torch" if frameworks.cupy() is None else "cupy"


def _can_compute() -> tuple[bool, str]:
    """Whether CuPy or torch can compute on the GPU: the ring need not, the demo's consumers do.

    With the GPU's name, or with what is missing.
    """
    import numpy as np

    from .arrays import arrays

    try:
        kind = arrays(_on_gpu())
        doubled = kind.from_host(np.arange(5)) * 2
        if kind.to_host(kind.sum(doubled.reshape(1, -1), 1, "i8"))[0] == 20:
            return True, gpus.name(frameworks.current_device())
        return False, "the GPU computes 2 * (0 + 1 + 2 + 3 + 4) wrongly"
    except gpuring.DeviceError as error:
        return False, str(error)
    except Exception as error:  # NVRTC or its headers are missing: many types, by CuPy's version
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if _on_gpu() == "torch":
            return False, f"torch cannot compute on the GPU ({first})"
        return False, (
            f"CuPy cannot compile kernels ({first}): pip install 'cupy-cuda12x[ctk]', or cuda13x"
        )


def _sync_why(ring: gpuring.Ring, args: argparse.Namespace) -> str:
    if ring.memory == "host":
        return "frames are ready when they are published"
    if args.sync != "auto":
        return "asked for"
    if ring.sync == "timeline":
        return "this GPU's streams can write and await 64-bit words"
    from gpuring.memory import cuda

    reason: str = cuda.timeline_supported(cuda.device_for("cuda"))[1]
    return reason


def _first_line(ring: gpuring.Ring, why: dict[str, str]) -> str:
    gate = f", gate {ring.gate}" if ring.memory != "host" else ""
    return f"memory: {ring.memory} ({why['memory']}) · sync: {ring.sync}{gate} ({why['sync']})"


def _pace(fps: float | None, rate: float) -> str:
    if fps is None:
        return "pace: flat out; the latencies below are mostly frames that queue in the ring"
    return f"pace: {fps:g} frames/s" + (", the video's own rate" if fps == rate else "")


def _say(text: str, indent: str = "  ") -> None:
    print(wrap(text, columns(), indent), flush=True)


def _complain(text: str) -> int:
    complain(f"gpuring demo: {text}")
    return UNUSABLE
