"""`gpuring demo` as a person runs it, and its verdict, which must be able to say no."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av", reason="gpuring[demo] is not installed")
pytest.importorskip("matplotlib", reason="gpuring[demo] is not installed")
pytest.importorskip("rich", reason="gpuring[demo] is not installed")
Image = pytest.importorskip("PIL.Image", reason="gpuring[demo] is not installed")

import gpuring  # noqa: E402
from gpuring.cli.demo import arithmetic, figures, pictures, verdict  # noqa: E402
from gpuring.cli.demo.clip import SHIPPED, open_clip  # noqa: E402
from gpuring.cli.demo.records import Outcome, Report  # noqa: E402

DEADLINE_S = 100
COMMAND = [sys.executable, "-c", "import sys, gpuring.cli; sys.exit(gpuring.cli.main())", "demo"]


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    """Runs the command; its children die with it, so the deadline ends them all."""
    return subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def litter(pid: int) -> list[Path]:
    """What the demo of that process has in shared memory."""
    return [path for path in Path("/dev/shm").iterdir() if f"demo-{pid}" in path.name]


# ---- the command --------------------------------------------------------------------------------


def test_host_run_passes_and_writes_everything(tmp_path: Path) -> None:
    _run_and_check(tmp_path, "host")


@pytest.mark.gpu
def test_gpu_run_passes_and_writes_everything(tmp_path: Path) -> None:
    _run_and_check(tmp_path, "cuda")


def _run_and_check(out: Path, memory: str) -> None:
    figures_file = out / "figures.json"
    result = demo(
        *("--memory", memory, "--frames", "60", "--out", str(out), "--json", str(figures_file))
    )

    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"memory: {memory} (")
    assert " · sync: " in lines[0]
    assert lines[-1] == "verdict: PASS"
    for name in ("contact-sheet.png", "latency.png"):
        with Image.open(out / name) as picture:
            picture.load()
            assert picture.format == "PNG"
            assert min(picture.size) > 500
            assert np.asarray(picture.convert("L")).std() > 20, f"{name} is blank"

    written = json.loads(figures_file.read_text())
    assert written["ring"]["memory"] == memory
    assert {"memory_why", "sync", "sync_why", "gate", "slots"} <= written["ring"].keys()
    assert {"processor", "cores", "python", "numpy", "gpu"} <= written["machine"].keys()
    assert written["producer"]["frames"] == 60
    assert written["verdict"]["passed"]
    assert all(check["passed"] for check in written["verdict"]["checks"])
    consumers = {consumer["name"]: consumer for consumer in written["consumers"]}
    assert consumers.keys() == {"analyser", "edges 1", "edges 2", "viewer"}
    assert consumers["analyser"]["frames"] == 60
    assert consumers["edges 1"]["frames"] + consumers["edges 2"]["frames"] == 60
    # A sequence that is void counts as lost.
    sequences = written["producer"]["last_seq"] - written["producer"]["first_seq"] + 1
    assert consumers["viewer"]["frames"] + consumers["viewer"]["lost"] == sequences
    for consumer in consumers.values():
        if consumer["frames"]:
            latency = consumer["latency_us"]
            assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]


def test_loops_and_pace(tmp_path: Path) -> None:
    result = demo(
        *("--memory", "host", "--frames", "10", "--loops", "3", "--fps", "100", "--slots", "2"),
        *("--out", str(tmp_path), "--json", str(tmp_path / "figures.json")),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    producer = json.loads((tmp_path / "figures.json").read_text())["producer"]
    assert producer["frames"] == 30
    assert producer["frames_per_s"] <= 105


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_nothing_behind(tmp_path: Path, stop: signal.Signals) -> None:
    with _started(tmp_path) as process:
        children = _children(process.pid)
        if stop == signal.SIGINT:
            os.killpg(process.pid, stop)  # as a terminal does: to the children as well
        else:
            process.send_signal(stop)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130
        assert errors == "gpuring demo: interrupted\n"
        # Python's own resource tracker goes when it sees that its parent is gone: a moment later.
        _wait_until(lambda: not any(map(_alive, children)), "a child is left")
        assert litter(process.pid) == []


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_a_killed_process_fails_the_run(tmp_path: Path, role: str) -> None:
    with _started(tmp_path) as process:
        with gpuring.attach(f"demo-{process.pid}") as ring:
            victim = next(peer.pid for peer in ring.stats().peers if peer.role == role)
        os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1
        assert f"(pid {victim}) died: killed by signal 9" in errors
        assert "PeerLost" not in errors, "a consequence, reported as if it were the cause"
        assert litter(process.pid) == []


def test_time_is_up(tmp_path: Path) -> None:
    result = demo(
        *("--memory", "host", "--fps", "0.01", "--timeout", "4", "--out", str(tmp_path), "--plain")
    )
    assert result.returncode == 1
    assert "not done within 4 s" in result.stderr


def test_a_file_that_is_no_video(tmp_path: Path) -> None:
    text = tmp_path / "notes.mp4"
    text.write_text("no video\n")
    for path in (text, tmp_path / "absent.mp4"):
        result = demo(str(path), "--memory", "host", "--out", str(tmp_path))
        assert result.returncode == 2
        assert str(path) in result.stderr


@contextmanager
def _started(out: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo that would go on for a long time, with all four consumers at work."""
    process = subprocess.Popen(
        [*COMMAND, "--memory", "host", "--fps", "20", "--loops", "1000", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _wait_until(lambda: len(_consumers_at_work(process)) == 4, "the demo did not start")
        yield process
    finally:
        process.kill()
        process.communicate()


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _consumers_at_work(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the consumers that have seen some frames."""
    for stats in gpuring.ls():
        if stats.name == f"demo-{process.pid}":
            peers = [peer for peer in stats.peers if peer.role == "consumer" and peer.frames > 3]
            return [peer.pid for peer in peers]
    return []


def _wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + DEADLINE_S / 4
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(otherwise)
        time.sleep(0.02)


# ---- the verdict --------------------------------------------------------------------------------

FRAMES, SLOTS = 12, 8
Crew = dict[str, Report]


@pytest.fixture(scope="module")
def truth() -> verdict.Reference:
    return verdict.reference(open_clip(SHIPPED, FRAMES))


@pytest.fixture
def crew(truth: verdict.Reference) -> Crew:
    """Reports of a run of two loops without a fault."""
    at = np.arange(2 * FRAMES)

    def report(name: str, at: Any, columns: tuple[str, ...]) -> Report:
        seq = at + SLOTS
        lost = np.diff(seq, prepend=SLOTS - 1) - 1 if name == "viewer" else np.zeros_like(at)
        return Report(
            name=name,
            pid=1,
            seq=seq,
            pts=truth.pts[at % FRAMES],
            published_ns=at * 1000,
            latency_ns=np.full_like(at, 500),
            lost=lost,
            values=truth.expected(at, columns),
        )

    return {
        "producer": report("producer", at, ("checksum",)),
        "analyser": report("analyser", at, arithmetic.FRAME_COLUMNS),
        "edges 1": report("edges 1", at[::2], arithmetic.EDGE_COLUMNS),
        "edges 2": report("edges 2", at[1::2], arithmetic.EDGE_COLUMNS),
        "viewer": report("viewer", at[3::4], ("checksum",)),
    }


def judge(truth: verdict.Reference, crew: Crew) -> dict[str, verdict.Check]:
    edges = (crew["edges 1"], crew["edges 2"])
    judged = verdict.check(truth, 2, crew["producer"], crew["analyser"], edges, crew["viewer"])
    assert judged.passed == all(check.passed for check in judged.checks)
    return {check.who: check for check in judged.checks}


def pick(report: Report, indices: Any) -> Report:
    """The report with only these entries, in this order."""
    fields = ("seq", "pts", "published_ns", "latency_ns", "lost", "values")
    return replace(report, **{field: getattr(report, field)[indices] for field in fields})


def falsified(report: Report, row: int, column: int) -> Report:
    values = report.values.copy()
    values[row, column] ^= np.uint64(1)
    return replace(report, values=values)


def test_a_faultless_run_passes(truth: verdict.Reference, crew: Crew) -> None:
    checks = judge(truth, crew)
    assert all(check.passed for check in checks.values()), checks


ALL = np.arange(2 * FRAMES)
SWAPPED = np.r_[0:4, 5, 4, 6 : 2 * FRAMES]
FALSE_PTS = np.r_[0 : 2 * FRAMES - 1, 0]

Spoil = Callable[[Report], Report]
FAULTS: list[tuple[str, str, Spoil, str]] = [
    *(
        ("analyser", "analyser", lambda r, c=c: falsified(r, 5, c), f"wrong {name} at seq 13")
        for c, name in enumerate(arithmetic.FRAME_COLUMNS)
    ),
    ("analyser", "analyser", lambda r: pick(r, np.delete(ALL, 6)), "missing: seq 14"),
    ("analyser", "analyser", lambda r: pick(r, np.insert(ALL, 6, 5)), "more than once: seq 13"),
    ("analyser", "analyser", lambda r: pick(r, SWAPPED), "out of order at seq 12"),
    ("analyser", "analyser", lambda r: replace(r, seq=r.seq + 1), "never published: seq 32"),
    ("analyser", "analyser", lambda r: replace(r, pts=r.pts + 1), "wrong pts at seq 8"),
    ("analyser", "analyser", lambda r: replace(r, values=r.values[:, :2]), "shape (24, 2)"),
    *(
        ("edges 2", "edges", lambda r, c=c: falsified(r, 0, c), f"edges 2: wrong {name} at seq 9")
        for c, name in enumerate(arithmetic.EDGE_COLUMNS)
    ),
    ("edges 1", "edges", lambda r: pick(r, slice(1, None)), "missing: seq 8"),
    ("edges 1", "edges", lambda r: replace(r, seq=r.seq + 1), "more than once: seq 9, 11"),
    ("edges 1", "edges", lambda r: pick(r, np.r_[1, 0, 2:12]), "edges 1: sequences do not rise"),
    ("viewer", "viewer", lambda r: falsified(r, 2, 0), "viewer: wrong checksum at seq 19"),
    ("viewer", "viewer", lambda r: pick(r, np.r_[0, 0, 1:6]), "not newer than the one before"),
    ("viewer", "viewer", lambda r: replace(r, lost=r.lost * 0), "lost frames miscounted"),
    ("viewer", "viewer", lambda r: replace(r, seq=r.seq + 100), "never published"),
    ("viewer", "viewer", lambda r: pick(r, slice(0, 0)), "no frame at all"),
    ("producer", "producer", lambda r: pick(r, FALSE_PTS), "sequences do not rise"),
    ("producer", "producer", lambda r: replace(r, pts=r.pts[::-1]), "pts differ from the clip's"),
    ("producer", "producer", lambda r: pick(r, ALL[:-1]), "23 frames published, the clip has 24"),
]


@pytest.mark.parametrize(
    ("report", "who", "spoil", "said"), FAULTS, ids=[f"{f[0]}: {f[3]}" for f in FAULTS]
)
def test_each_fault_is_reported(
    truth: verdict.Reference, crew: Crew, report: str, who: str, spoil: Spoil, said: str
) -> None:
    crew[report] = spoil(crew[report])
    check = judge(truth, crew)[who]
    assert not check.passed
    assert said in check.detail


def test_a_run_in_which_nothing_was_seen_fails(truth: verdict.Reference, crew: Crew) -> None:
    empty = {name: pick(report, slice(0, 0)) for name, report in crew.items()}
    checks = judge(truth, empty)
    assert not checks["producer"].passed
    assert not checks["viewer"].passed


def test_pictures_of_a_run_in_which_nothing_was_seen(
    tmp_path: Path, truth: verdict.Reference, crew: Crew
) -> None:
    empty = {name: pick(report, slice(0, 0)) for name, report in crew.items()}
    outcome = Outcome(
        clip=open_clip(SHIPPED, FRAMES),
        memory="host",
        sync="host",
        gate="stream",
        slots=SLOTS,
        fps=None,
        producer=empty["producer"],
        analyser=empty["analyser"],
        edges=(empty["edges 1"], empty["edges 2"]),
        viewer=empty["viewer"],
        max_lag={"analyser": 0, "edges": 0, "viewer": 0},
    )
    edges = outcome.edges
    judged = verdict.check(truth, 1, outcome.producer, outcome.analyser, edges, outcome.viewer)
    pictures.contact_sheet(tmp_path / "sheet.png", outcome, judged)
    pictures.latency_plot(tmp_path / "plot.png", outcome)
    why = {"memory": "asked for", "sync": "asked for"}
    figures.write(tmp_path / "figures.json", outcome, judged, why)
    assert len(list(tmp_path.iterdir())) == 3


# ---- the arithmetic -----------------------------------------------------------------------------


def test_checksum_sees_every_byte_and_their_order() -> None:
    # 105 bytes: 13 words and 1
    image = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)
    weight = arithmetic.weights(image.nbytes, np)
    sums = {int(arithmetic.checksum(image, weight, np)[0])}
    for at in range(image.nbytes):
        changed = image.copy()
        changed.reshape(-1)[at] ^= 128
        sums.add(int(arithmetic.checksum(changed, weight, np)[0]))
    for at in range(0, 96, 8):
        swapped = image.copy()
        flat = swapped.reshape(-1)
        flat[at : at + 16] = np.roll(flat[at : at + 16], 8)
        sums.add(int(arithmetic.checksum(swapped, weight, np)[0]))
    assert len(sums) == 1 + 105 + 12


def test_sobel_against_its_definition() -> None:
    y = np.random.default_rng(2).integers(0, 256, (6, 9), np.uint8)
    kernel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    want = np.empty((4, 7), int)
    for row in range(4):
        for column in range(7):
            window = y[row : row + 3, column : column + 3].astype(int)
            want[row, column] = abs((window * kernel).sum()) + abs((window * kernel.T).sum())
    assert np.array_equal(arithmetic.sobel(y, np), np.minimum(want, 255))


def test_frame_measure_against_its_definition() -> None:
    frames = np.random.default_rng(3).integers(0, 256, (2, 4, 6, 3), np.uint8)
    measure = arithmetic.FrameMeasure((4, 6, 3), np)
    rows = [measure(frame).tolist() for frame in frames]
    luma = [(frame.astype(int) @ (77, 150, 29) + 128) >> 8 for frame in frames]
    assert [row[:3] for row in rows] == frames.sum(axis=(1, 2), dtype=int).tolist()
    assert rows[0][arithmetic.MOTION] == 0
    assert rows[1][arithmetic.MOTION] == np.abs(luma[1] - luma[0]).sum()


def test_thumbnail_is_the_mean_of_boxes() -> None:
    image = np.arange(8 * 13, dtype=np.uint8).reshape(8, 13)
    small = arithmetic.thumbnail(image, 3)
    assert small.shape == (2, 3)
    assert small[1, 2] == image[4:8, 8:12].sum(dtype=int) // 16


@pytest.mark.gpu
def test_gpu_gives_the_same_bits() -> None:
    cupy = pytest.importorskip("cupy")
    shape = (37, 53, 3)  # an odd number of bytes
    frames = np.random.default_rng(4).integers(0, 256, (2, *shape), np.uint8)
    on = {}
    for xp in (np, cupy):
        frame_measure, edge_measure = (
            arithmetic.FrameMeasure(shape, xp),
            arithmetic.EdgeMeasure(shape, xp),
        )
        results = []
        for frame in frames:
            image = xp.asarray(frame)
            edges, row = edge_measure(image)
            results += [frame_measure(image), row, edges, arithmetic.thumbnail(image, 20)]
        on[xp.__name__] = [np.array(result.tolist()) for result in results]
    for host, gpu in zip(on["numpy"], on["cupy"], strict=True):
        assert np.array_equal(host, gpu)
