"""A real video through a ring: one process decodes it, four with different delivery policies read
it (a lossless analyser, two workers that share edge detection, a viewer that takes the newest
frame), and the verdict holds what they saw to a second, independent decode.
"""

# clip        the video                    roles    what each process does
# arithmetic  what is computed per frame   crew     the processes together
# records     what they report             table    the live table
# verdict     against a second decode      pictures, figures   PNG and JSON files

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpuring

if TYPE_CHECKING:
    from .records import Job, Outcome
    from .verdict import Verdict

EXTRAS = {"av": "PyAV", "rich": "rich", "matplotlib": "matplotlib", "PIL": "Pillow"}
PASSED, FAILED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The demo's options."""
    parser.add_argument(
        "video", nargs="?", type=Path, help="a video file (default: a clip that comes along)"
    )
    parser.add_argument(
        "--memory",
        choices=("auto", "cuda", "host"),
        default="auto",
        help="where the slots live (default: a GPU where one is usable, else the host)",
    )
    parser.add_argument(
        "--sync",
        choices=("auto", "event", "timeline"),
        default="auto",
        help="how GPU streams wait for each other",
    )
    parser.add_argument("--gate", choices=("stream", "host"), help="who waits: streams or the host")
    parser.add_argument(
        "--slots", type=_count, default=8, metavar="N", help="frames in flight (default: 8)"
    )
    parser.add_argument("--frames", type=_count, metavar="N", help="only the clip's first N frames")
    parser.add_argument(
        "--loops", type=_count, default=1, metavar="N", help="play the clip N times (default: 1)"
    )
    parser.add_argument(
        "--fps",
        type=_positive,
        metavar="R",
        help="pace of the producer (default: as fast as the lossless readers allow)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("gpuring-demo"),
        metavar="DIR",
        help="where the pictures go (default: gpuring-demo)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--plain", action="store_true", help="no live table")
    parser.add_argument(
        "--timeout",
        type=_positive,
        default=120.0,
        metavar="S",
        help="seconds after which the run has failed (default: 120)",
    )


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {value}")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"a number above 0, not {text}")
    return value


def run(args: argparse.Namespace) -> int:
    """Runs the demo: 0 passed, 1 failed, 2 could not be started, 130 interrupted."""
    missing = [label for module, label in EXTRAS.items() if not importlib.util.find_spec(module)]
    if missing:
        return _complain(f"{', '.join(missing)} not installed: pip install 'gpuring[demo]'")

    from .clip import ClipError
    from .crew import CrewError
    from .signals import terminable

    try:
        with terminable():
            return _play(args)
    except CrewError as error:
        _complain(str(error))
        return FAILED
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except (gpuring.RingError, ClipError, OSError, ValueError) as error:
        return _complain(str(error))


def _play(args: argparse.Namespace) -> int:
    from .clip import SHIPPED, open_clip
    from .records import Job
    from .signals import uninterrupted

    # Libraries load in here too: not all of them stand an interrupt half-way.
    with uninterrupted():
        clip = open_clip(args.video or SHIPPED, args.frames)
        args.out.mkdir(parents=True, exist_ok=True)
        device, memory_why = _choose_memory(args.memory)
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
        print(_first_line(ring, why), flush=True)
        print(
            f"{clip.path.name}: {clip.width} x {clip.height}, {clip.codec}. {clip.credit}".rstrip()
        )
        arrays = "numpy" if ring.memory == "host" else "cupy"
        job = Job(ring=ring.name, clip=clip, loops=args.loops, fps=args.fps, arrays=arrays)
        outcome = _run_crew(args, job, ring)
    return PASSED if _judge(args, outcome, why) else FAILED


def _run_crew(args: argparse.Namespace, job: Job, ring: gpuring.Ring) -> Outcome:
    from .signals import uninterrupted

    with uninterrupted():
        from rich.console import Console

        from .crew import Crew
        from .records import Outcome
        from .table import LiveTable, final

    console = Console(highlight=False)
    with Crew(job, args.timeout) as crew:
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
    console.print(final(outcome))
    return outcome


def _judge(args: argparse.Namespace, outcome: Outcome, why: dict[str, str]) -> bool:
    """Checks the run, writes its files, prints the verdict."""
    from .signals import uninterrupted

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
    if args.json:
        figures.write(args.json, outcome, judged, why)
    print(f"pictures: {sheet}, {plot}")
    _print_verdict(judged, seconds)
    return judged.passed


def _print_verdict(judged: Verdict, seconds: float) -> None:
    print(f"against an independent decode ({seconds:.1f} s):")
    for check in judged.checks:
        print(f"  {'ok    ' if check.passed else 'FAILED'}  {check.who:<9} {check.detail}")
    failures = sum(not check.passed for check in judged.checks)
    print("verdict: PASS" if judged.passed else f"verdict: FAIL ({failures} of 4 checks)")


def _choose_memory(asked: str) -> tuple[str, str]:
    """The ring's device, and why; DeviceError if a GPU was asked for and is not usable."""
    if asked == "host":
        return "host", "asked for"
    from gpuring.memory import cuda_ipc

    usable, reason = cuda_ipc.available()
    if usable:
        usable, reason = _can_compute()
    if usable:
        return "cuda", f"asked for, {reason}" if asked == "cuda" else f"found {reason}"
    if asked == "cuda":
        raise gpuring.DeviceError(f"--memory cuda: {reason}")
    # The advice to use the host is followed already.
    return "host", "no usable GPU: " + re.split(r"[;.] (?:or use|Use) device='host'", reason)[0]


def _can_compute() -> tuple[bool, str]:
    """Whether CuPy can compile kernels here: the ring needs none, the demo's consumers do.

    With the GPU's name, or with what is missing.
    """
    cupy: Any = importlib.import_module("cupy")
    try:
        if int((cupy.arange(5, dtype=cupy.uint64) * cupy.uint64(2)).sum()) == 20:
            runtime = cupy.cuda.runtime
            return True, runtime.getDeviceProperties(runtime.getDevice())["name"].decode()
        return False, "the GPU computes 2 * (0 + 1 + 2 + 3 + 4) wrongly"
    except Exception as error:  # NVRTC or its headers are missing: many types, by CuPy's version
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
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
    from gpuring.memory import cuda_ipc

    reason: str = cuda_ipc.timeline_supported(cuda_ipc.device_for("cuda"))[1]
    return reason


def _first_line(ring: gpuring.Ring, why: dict[str, str]) -> str:
    gate = f", gate {ring.gate}" if ring.memory != "host" else ""
    return f"memory: {ring.memory} ({why['memory']}) · sync: {ring.sync}{gate} ({why['sync']})"


def _complain(text: str) -> int:
    print(f"gpuring demo: {text}", file=sys.stderr)
    return UNUSABLE
