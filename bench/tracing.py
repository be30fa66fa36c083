"""What a trace costs the traced processes, and what the command itself costs.

    python -m bench.tracing [--rounds 30] [--json FILE] [--from FILE]

* Each verb of the core in C, built in three ways that take turns: "without" any look at whether it
  is traced, "off", and "on".  Where two of them are compared, the runs of one turn are.
* The four verbs of a frame in Python, of rings in host memory and on a GPU, if there is one.  They
  are traced in every other turn.
* The command with 250 peers in one ring, and its looks at the words of a GPU.

At the end it prints the table of docs/tracing.md.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

import gpuring
from bench import options
from gpuring.cli.bench import why_no_gpu
from gpuring.cli.measure import stored
from gpuring.cli.measure.attempt import Wrong
from gpuring.cli.measure.crew import Crew, Pipe
from gpuring.cli.measure.figures import Distribution, Figure, Value
from gpuring.cli.measure.settings import HOST, SLOTS, Place, create, remove_rings, ring_name

GROUP = "tracing"
VERBS = ("claim", "publish", "acquire", "release")
LOOK = "return __builtin_expect(gr_load_relaxed(&ring->head->traced_until_ns) != 0, 0);"
"""Of trace.h: what a verb does while nobody traces."""
TRIMMED = [str(quantile) for quantile in range(5, 100, 5)]
"""The mean of these percentiles is the mean of a run without its outliers."""
LAPS = 200
"""Of one turn in Python."""
PEERS, PROCESSES = 250, 5
SECONDS = 3.0
PATIENCE_S = 60.0
MINUS = "\N{MINUS SIGN}"


# ---- the verbs in C ------------------------------------------------------------------------------


def build(folder: Path, way: str) -> Path:
    """Compiles the benchmark of the verbs in one of the three ways."""
    native = folder / way / "native"
    shutil.copytree(Path(gpuring.__file__).parent / "native/core", native / "core")
    if way == "without":
        header = native / "core/trace.h"
        text = header.read_text()
        if text.count(LOOK) != 1:
            raise Wrong("core/trace.h has no such look")
        header.write_text(text.replace(LOOK, "(void)ring;\n    return false;"))
    program = folder / way / "transitions"
    command = ["cc", "-std=gnu11", "-O2", "-pthread", f"-I{native}", "-o", str(program)]
    command += ["-DTRACED"] if way == "on" else []
    command += [str(Path(__file__).with_name("transitions.c"))]
    command += map(str, sorted(native.glob("core/*.c")))
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    return program


def run(program: Path) -> dict[str, float]:
    done = subprocess.run(
        [program, *TRIMMED], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    )
    found = json.loads(done.stdout)
    return {verb: float(np.mean(found[verb])) for verb in VERBS}


def in_c(rounds: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        programs = {way: build(Path(folder), way) for way in ("without", "off", "on")}
        turns = [{way: run(each) for way, each in programs.items()} for _ in range(rounds)]
    where: Mapping[str, Value] = {"sync": "host", "slots": SLOTS}
    verified = "each sequence, in order"
    for verb in VERBS:
        for way in programs:
            values = Distribution.of([turn[way][verb] for turn in turns])
            yield Figure(GROUP, verb, f"core, {way}", "ns", where, values, verified)
        for way, base in (("off", "without"), ("on", "off")):
            values = Distribution.of([turn[way][verb] - turn[base][verb] for turn in turns])
            name = f"{verb}, difference"
            yield Figure(GROUP, name, f"core, {way} - {base}", "ns", where, values, verified)


# ---- the verbs in Python -------------------------------------------------------------------------


@contextlib.contextmanager
def traced(name: str) -> Iterator[None]:
    from gpuring.native import Tracer
    from gpuring.registry import directory

    with directory.open_to_trace(name) as file:
        tracer = Tracer(file.fd)
        yield
        tracer.off()


def turns_in_python(pipe: Pipe, place: Place, rounds: int) -> list[tuple[float, float]]:
    """(off, on): nanoseconds of a frame's four verbs, for each turn."""
    name, found = ring_name(), []
    with (
        create(name, place) as ring,
        ring.producer() as producer,
        ring.consumer() as consumer,
    ):

        def turn() -> float:
            seqs = []
            begun = time.perf_counter_ns()
            for _ in range(LAPS):
                for _ in range(SLOTS):
                    slot = producer.claim()
                    seqs.append(slot.seq)
                    slot.publish()
                due = iter(seqs[-SLOTS:])
                for _ in range(SLOTS):
                    frame = consumer.acquire()
                    if frame.seq != next(due):
                        raise Wrong("another frame")
                    frame.release()
            return (time.perf_counter_ns() - begun) / (LAPS * SLOTS)

        for k in range(rounds + 1):
            off = turn()
            with traced(name):
                on = turn()
            if k:  # the first one warms up
                found.append((off, on))
    return found


def in_python(crew: Crew, rounds: int, places: Iterable[Place]) -> Iterator[Figure]:
    for place in places:
        turns = crew.call(turns_in_python, place, rounds)
        where: Mapping[str, Value] = {"memory": place.name, "slots": SLOTS}
        verified = "each sequence"
        for k, way in enumerate(("off", "on")):
            values = Distribution.of([turn[k] for turn in turns])
            yield Figure(GROUP, "verbs of a frame", f"Python, {way}", "ns", where, values, verified)
        values = Distribution.of([on - off for off, on in turns])
        yield Figure(
            GROUP, "verbs of a frame, difference", "Python, on - off", "ns", where, values, verified
        )


def own_slices(pipe: Pipe, rounds: int) -> dict[str, list[float]]:
    """The nanoseconds of a block of gpuring.annotate, and of one that does nothing."""
    found: dict[str, list[float]] = {"nullcontext": [], "annotate, off": [], "annotate, on": []}
    name, n = ring_name(), 2000

    def turn(kind: Callable[[str], contextlib.AbstractContextManager[object]]) -> float:
        begun = time.perf_counter_ns()
        for _ in range(n):
            with kind("resize"):
                pass
        return (time.perf_counter_ns() - begun) / n

    with create(name, HOST) as ring, ring.producer() as producer:
        for _ in range(rounds):
            found["nullcontext"].append(turn(contextlib.nullcontext))
            found["annotate, off"].append(turn(gpuring.annotate))
            with traced(name):
                producer.claim().abandon()  # so that this process has room for events
                found["annotate, on"].append(turn(gpuring.annotate))
    return found


def slices(crew: Crew, rounds: int) -> Iterator[Figure]:
    for way, ns in crew.call(own_slices, rounds).items():
        yield Figure(GROUP, "own slice", way, "ns", values=Distribution.of(ns))


# ---- the command ---------------------------------------------------------------------------------


def read_as_many(pipe: Pipe, name: str, consumers: int) -> None:
    """Many consumers that all read every frame, until they are told to end."""
    with contextlib.ExitStack() as stack:
        ring = stack.enter_context(gpuring.attach(name))
        readers = [stack.enter_context(ring.consumer()) for _ in range(consumers)]
        pipe.send()
        while not pipe.told():
            for ready in gpuring.select(readers, 0.1):
                with contextlib.suppress(gpuring.RingTimeout):
                    ready.acquire(0).release()
        pipe.receive()


def many_peers(crew: Crew) -> Iterator[Figure]:
    """A camera of 100 frames a second and 249 readers."""
    from gpuring.tracing.collector import Collector

    try:
        from gpuring.tracing.perfetto import write
    except ImportError:
        yield Figure(GROUP, "events", "gpuring", "events/s", skipped="perfetto is not installed")
        return
    from gpuring.tracing.timeline import Timeline

    name, frames = ring_name(), int(100 * SECONDS)
    with contextlib.ExitStack() as stack:
        ring = stack.enter_context(
            gpuring.create(
                name,
                slots=64,
                shape=64,
                dtype="u1",
                device="host",
                max_peers=PEERS,
                max_subscriptions=PEERS,
            )
        )
        producer = stack.enter_context(ring.producer())
        shares = [len(share) for share in np.array_split(range(PEERS - 1), PROCESSES)]
        readers = [crew.start(read_as_many, name, share) for share in shares]
        for each in readers:
            each.receive()
        collector = Collector([name])
        due = time.monotonic()

        def publish() -> bool:
            """Publishes frames in the time between two looks, because this process is also the
            camera."""
            nonlocal due, frames
            while frames and time.monotonic() >= due:
                producer.claim(PATIENCE_S).publish()
                due, frames = due + 0.01, frames - 1
            return not frames

        begun, cpu = time.monotonic(), time.process_time()
        try:
            collector.run(begun + PATIENCE_S, publish)
            share = 100 * (time.process_time() - cpu) / (time.monotonic() - begun)
        finally:
            collector.end()
            for each in readers:
                each.send()
        for each in readers:
            each.result()
        (traced_ring,) = collector.rings
        if len(traced_ring.parts) != PEERS:
            raise Wrong(f"{len(traced_ring.parts)} peers of {PEERS} are in the trace")
        cpu = time.process_time()
        timeline = Timeline(collector.rings, collector.ended_ns)
        picture = timeline.draw()
        with tempfile.TemporaryDirectory() as folder:
            nbytes = write(Path(folder, "many.pftrace"), picture, timeline.pids, collector.threads)
        took = time.process_time() - cpu
    where, events = {"peers": PEERS, "processes": PROCESSES}, traced_ring.events
    for what, unit, value in (
        ("events", "events/s", events / SECONDS),
        ("events missed", "events", traced_ring.missed),
        ("CPU of the command", "% of a core", share),
        ("CPU to draw and write", "µs/event", 1e6 * took / events),
        ("size of the file", "bytes/event", nbytes / events),
    ):
        spread = Distribution.of([value])
        yield Figure(GROUP, what, "gpuring", unit, where, spread, "all peers are in the trace")


def looks(pipe: Pipe) -> tuple[float, float]:
    """(% of a core, µs from one look at the words of a ring on a GPU to the next)."""
    from gpuring.tracing.collector import Collector

    name = ring_name()
    with create(name, Place("timeline")):
        collector = Collector([name])
        (ring,) = collector.rings
        assert ring.fences is not None
        look, n = ring.fences.look, 0

        def counted() -> None:
            nonlocal n
            n += 1
            look()

        ring.fences.look = counted  # type: ignore[method-assign]
        begun, cpu = time.monotonic(), time.process_time()
        collector.run(begun + SECONDS, lambda: False)
        cpu = time.process_time() - cpu
        collector.end()
    return 100 * cpu / SECONDS, 1e6 * SECONDS / n


def on_gpu(crew: Crew) -> Iterator[Figure]:
    share, gap_us = crew.call(looks)
    for what, unit, value in (
        ("CPU of the command", "% of a core", share),
        ("from look to look", "µs", gap_us),
    ):
        where = {"sync": "timeline"}
        yield Figure(GROUP, what, "gpuring", unit, where, Distribution.of([value]))


def figures(rounds: int) -> Iterator[Figure]:
    yield from in_c(rounds)
    with Crew() as crew, contextlib.ExitStack() as stack:
        stack.callback(remove_rings)
        why_not = crew.call(why_no_gpu)
        if why_not:
            yield Figure(GROUP, "on a GPU", "gpuring", "", skipped=why_not)
        places = [HOST] if why_not else [HOST, Place("timeline", "stream")]
        yield from in_python(crew, rounds, places)
        yield from slices(crew, rounds)
        yield from many_peers(crew)
        if not why_not:
            yield from on_gpu(crew)


# ---- the page ------------------------------------------------------------------------------------


def table(found: Iterable[Figure]) -> str:
    """The table of docs/tracing.md."""
    got = {(each.name, each.program): each.values for each in found}

    def median(name: str, program: str) -> str:
        values = got[name, program]
        return f"{values.p50:.1f}" if values else "?"

    def middle(name: str, program: str) -> str:
        values = got[name, program]
        if not values:
            return "?"
        low, high = (round(values.p(quantile), 1) + 0.0 for quantile in (25, 75))  # no -0.0
        return f"{low} … {high}".replace("-", MINUS)

    rows = [
        f"| verb | without | off | on | off {MINUS} without | on {MINUS} off |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for verb in VERBS:
        cells = [median(verb, f"core, {way}") for way in ("without", "off", "on")]
        cells += [
            middle(f"{verb}, difference", f"core, {way}") for way in ("off - without", "on - off")
        ]
        rows.append(f"| {' | '.join([verb, *cells])} |")
    return "\n".join(rows)


def main() -> int:
    parser = options.parser("python -m bench.tracing", __doc__)
    options.add_rounds(parser, 30)
    options.add_json(parser)
    options.add_from(parser, "print the table of these results")
    args = parser.parse_args()
    if args.stored:
        print(table(stored.load(args.stored).figures))
        return 0
    done = stored.run(figures(args.rounds), sys.argv[1:], args.json)
    if not done.interrupted:
        print(table(done.figures))
    return done.status


if __name__ == "__main__":
    options.run(main)
