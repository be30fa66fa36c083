"""The blocks of the pages run as they stand there.  The tests provide what the pages leave to the
reader."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import selectors
import shlex
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuring
from gpuring.cli import COMMANDS
from tests import ROOT
from tests.docs import blocks
from tests.docs.blocks import block, run
from tests.helpers.processes import PATIENCE_S, poll


class Enough(Exception):
    """Ends a block that goes on until its reader ends it."""


@pytest.fixture
def world(name: str) -> Iterator[SimpleNamespace]:
    """A ring cam0 with a producer, and a consumer that has not read three frames."""
    with contextlib.ExitStack() as stack:
        ring = stack.enter_context(
            gpuring.create(f"{name}.cam0", slots=8, shape=(4, 6), dtype="f4",
                           meta=[("pts", "i8")], device="host")
        )  # fmt: skip
        producer = stack.enter_context(ring.producer())
        frames = stack.enter_context(ring.consumer(start="oldest"))
        publish(producer, 3)
        yield SimpleNamespace(ring=ring, producer=producer, frames=frames)


def publish(producer: gpuring.Producer, n: int) -> None:
    for pts in range(n):
        with producer.claim(PATIENCE_S) as slot:
            slot.array[...] = 1
            slot.meta["pts"] = pts


# ---- which blocks run ----------------------------------------------------------------------------


def test_each_program_of_the_pages_is_run():
    assert blocks.left_out() == []
    for file in {*blocks.BY_PAGE.values(), *blocks.BY_PLACE.values()}:
        assert (ROOT / "tests" / "docs" / file).exists()


def commands() -> list[Any]:
    """The commands on the pages, from `gpuring` to a comment, a pipe or the end of the line."""
    lines = {
        line
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for language, before in (("sh", ""), ("console", r"\$ "), ("", r"\$ "))
        for text in blocks.of(str(page.relative_to(ROOT)), language)
        for line in re.findall(rf"^{before}(gpuring [^#|&>\n]*[^#|&>\n ])", text, re.M)
    }
    return sorted(lines)


@pytest.mark.parametrize("line", commands())
def test_each_command_of_the_pages_can_be_typed(line):
    """The command has these options, and they take such values."""
    _, command, *arguments = shlex.split(line)
    parser = argparse.ArgumentParser(exit_on_error=False)
    COMMANDS[command][0].add_arguments(parser)
    parser.parse_args(arguments)


# ---- writing and reading -------------------------------------------------------------------------


@block("guide.md", 2)
def test_write(code, world):
    with world.ring.consumer() as frames:
        run(code, producer=world.producer, image=np.full((4, 6), 9, "f4"))
        with frames.acquire(0) as slot:
            assert (slot.array.min(), slot.meta["pts"]) == (9, 7)


@block("guide.md", 3)
def test_read_to_the_end(code, world):
    world.producer.close()
    assert run(code, frames=world.frames, total=0)["total"] == 3 * 24


@block("guide.md", 4)
def test_read_by_hand(code, world):
    assert run(code, frames=world.frames)["pts"] == 0
    with world.frames.acquire(0) as slot:
        assert slot.meta["pts"] == 1


@block("guide.md", 5)
def test_read_the_newest(code, world):
    world.producer.close()
    total = np.zeros(1)
    with (
        world.ring.consumer(lossless=False, start="oldest") as frames,
        pytest.raises(gpuring.EndOfStream),
    ):
        run(code, frames=frames, total=total)
    assert total == 24  # the sum of one frame


@block("frames.md", 0)
def test_claim(code, world):
    run(code, producer=world.producer, decode_into=lambda array: array.fill(2))
    seen = [world.frames.acquire(0) for _ in range(5)]
    assert seen[3].array.max() == 2
    with pytest.raises(gpuring.RingTimeout):
        world.frames.acquire(0)


@block("frames.md", 2)
def test_acquire(code, world):
    run(code.replace("for slot in frames: ...", "for slot in frames: break"), frames=world.frames)
    assert world.frames.acquire(0).meta["pts"] == 2


@block("frames.md", 3)
def test_batches(code, world):
    seen = []
    run(
        code, consumer=world.frames, producer=world.producer,
        detect=lambda array: seen.append(array.sum()), render=lambda array: array.fill(3),
    )  # fmt: skip
    assert seen == [24] * 3
    with world.frames.acquire_many(8, 0) as batch:
        assert [slot.array.max() for slot in batch] == [3] * 4


@block("tracing.md", 0)
def test_annotations(code, world, tmp_path):
    with (tmp_path / "frames").open("wb", buffering=0) as file:
        world.producer.close()
        run(code, frames=world.frames, os=os, file=file.fileno())
        assert file.tell() == 3 * 24 * 4


# ---- waiting -------------------------------------------------------------------------------------


@pytest.fixture
def two(name: str) -> Iterator[list[gpuring.Ring]]:
    """Two rings with three frames each, whose producers leave when their consumers are there."""
    with contextlib.ExitStack() as stack:
        rings, producers = [], []
        for side in ("left", "right"):
            ring = gpuring.create(f"{name}.{side}", slots=8, shape=(4,), dtype="f4",
                                  meta=[("pts", "i8")], device="host")  # fmt: skip
            rings.append(stack.enter_context(ring))
            producers.append(stack.enter_context(ring.producer()))

        def fill() -> None:
            poll(lambda: all(len(ring.stats().subscriptions) for ring in rings))
            for producer in producers:
                publish(producer, 3)
                producer.close()

        writer = threading.Thread(target=fill)
        writer.start()
        stack.callback(writer.join)
        yield rings


@block("guide.md", 6)
def test_one_of_several(code, two):
    left, right = (ring.consumer() for ring in two)
    poll(lambda: two[1].stats().subscriptions[0].lag == 3)
    assert run(code, left=left, right=right, total=0)["total"] == 2 * 4


@block("guide.md", 7)
def test_frames_of_one_moment(code, two):
    left, right = (ring.consumer() for ring in two)
    assert run(code, left=left, right=right, total=0)["total"] == 0


@block("waiting.md", 0)
def test_select(code, two):
    seen = []

    def predict(array: Any) -> None:
        seen.append(array.sum())
        if len(seen) == 6:
            raise Enough

    with pytest.raises((Enough, gpuring.EndOfStream)):
        run(code, rings=two, predict=predict)
    assert seen[:3] == [4] * 3


@block("waiting.md", 1)
def test_asyncio(code, world):
    run(code.replace("in frames: ...", "in frames: break"),
        frames=world.frames, producer=world.producer)  # fmt: skip
    assert world.ring.stats().producers[0].frames == 4


@block("waiting.md", 2)
def test_fileno(code, world):
    with selectors.DefaultSelector() as selector:
        run(code, selector=selector, selectors=selectors, frames=world.frames)
    assert world.frames.acquire(0).meta["pts"] == 1


@block("waiting.md", 3)
def test_spin(code, world):
    world.producer.close()
    made = run(code, ring=world.ring, back=world.ring)
    publish(made["results"], 1)
    made["frames"].acquire(PATIENCE_S).release()


@block("align.md", 0)
def test_align(code, two):
    matched, written = [], []
    parts = re.split(r"\n\n(?=for )", code)
    made = run(
        parts[0], rings=two, match=lambda left, right: matched.append((left.sum(), right.sum()))
    )
    assert matched == [(4, 4)] * 3
    for part in parts[1:]:
        run(part, frames=made["frames"], write=written.append)
    assert written == []  # the streams have ended


# ---- ends ----------------------------------------------------------------------------------------


def endless(code: str) -> str:
    return code.replace("for slot in frames: ...", "for slot in frames: break")


@block("ends.md", 0)
def test_following(code, world):
    done = threading.Event()

    def write() -> None:
        poll(lambda: len(world.ring.stats().subscriptions) == 2)
        publish(world.producer, 1)
        done.set()

    threading.Thread(target=write).start()
    assert run(endless(code))["slot"].seq == 11
    assert done.wait(PATIENCE_S)


@block("ends.md", 1)
def test_several_producers(code):
    with run(code)["ring"] as ring:
        assert (ring.slots, ring.shape) == (8, (64,))


@block("ends.md", 2)
def test_durable(code, world, name):
    world.ring.subscribe("recorder")
    publish(world.producer, 1)
    assert run(endless(code))["slot"].seq == 11
    world.ring.unsubscribe("recorder")


@block("ends.md", 3)
def test_dropping(code, world):
    run(code, producer=world.producer)
    assert world.ring.stats().producers[0].frames == 4


# ---- where slots are -----------------------------------------------------------------------------


@pytest.fixture
def on_gpu(name: str) -> Iterator[SimpleNamespace]:
    with (
        gpuring.create(f"{name}.cam0", slots=2, shape=(4, 6), dtype="f4", device="cuda") as ring,
        ring.producer() as producer,
        ring.consumer() as frames,
    ):
        yield SimpleNamespace(ring=ring, producer=producer, frames=frames)


@block("frames.md", 1)
@pytest.mark.gpu
def test_a_result_that_is_born_in_the_slot(code, on_gpu):
    cupy = pytest.importorskip("cupy", reason="only CuPy's allocator can be given memory")
    made = run(code, producer=on_gpu.producer, x=cupy.ones((4, 6), "f4"), model=lambda x: x + 1)
    assert made["y"].shape == (4, 6)
    with on_gpu.frames.acquire(PATIENCE_S) as slot:
        assert (slot.array.get() == 2).all()


@block("streams.md", 0)
@pytest.mark.gpu
def test_a_stream_of_torch(code, on_gpu):
    torch = pytest.importorskip("torch")
    with on_gpu.producer.claim(PATIENCE_S) as slot:
        torch.from_dlpack(slot).fill_(5)
    with on_gpu.frames.acquire(PATIENCE_S) as slot:
        made = run(code, torch=torch, s=torch.cuda.Stream(), slot=slot)
        made["s"].synchronize()
        assert (made["tensor"].cpu() == 5).all()


@block("streams.md", 1)
@pytest.mark.gpu
def test_graphs(code, on_gpu):
    cupy = pytest.importorskip("cupy", reason="its graphs are CuPy's")
    stream, graphs = cupy.cuda.Stream(non_blocking=True), {}
    for _ in range(4):
        run(code, producer=on_gpu.producer, s=stream, graphs=graphs, step=lambda a: a.fill(6))
        with on_gpu.frames.acquire(PATIENCE_S) as slot:
            assert (slot.array.get() == 6).all()
    assert len(graphs) == 2


# ---- bridges -------------------------------------------------------------------------------------


@block("bridge.md", 0, 1)
@pytest.mark.slow
def test_a_bridge(code, world, name, tmp_path, monkeypatch, capsys, handlers):
    """Both hosts are this one, so the far ring has another name, and the address is this host's."""
    pytest.importorskip("zmq")
    from gpuring import bridge

    monkeypatch.chdir(tmp_path)
    bridge.keygen()
    detector, importer = code.split("from gpuring import bridge", 1)

    def until_the_end() -> None:
        poll(lambda: world.ring.stats().subscriptions[1:])
        publish(world.producer, 2)
        world.producer.close()

    writer = threading.Thread(target=until_the_end)
    writer.start()
    with bridge.export(world.ring.name, listen="127.0.0.1:0", key="bridge-export.key") as out:
        importer = re.sub(r'"10.0.0.5:9760/cam0"', f'"{out.address}/{world.ring.name}"', importer)
        importer = importer.replace("import_(", f'import_(name="{name}.far", *[')
        importer = importer.replace(", key=", "], key=").replace("link.wait()", "detect()")
        text = detector.replace(world.ring.name, f"{name}.far")
        run("from gpuring import bridge" + importer, detect=lambda: run(text))
    writer.join()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["11", "12"]
