"""The programs of docs/c.md are those of examples/c, and its commands build and run them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import gpuring
from gpuring import config, slot_layout
from gpuring.memory import kinds
from tests import ROOT
from tests.helpers import rings
from tests.helpers.arrays import array_of
from tests.helpers.compiled import BUILD_S, needs_compiler
from tests.helpers.processes import poll, until

pytestmark = needs_compiler

PAGE = (ROOT / "docs" / "c.md").read_text()
EXAMPLES = ROOT / "examples" / "c"
SHOWN = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)
WARNINGS = "-Wall -Wextra -Wpedantic -Werror"


def command(begins: str) -> str:
    """The line of the page that begins like this."""
    lines = {each for _, block in SHOWN for each in block.splitlines()}
    (line,) = (each for each in lines if each.startswith(begins))
    return line


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Runs a line of the page in a folder that has the examples."""
    for path in EXAMPLES.iterdir():
        shutil.copy(path, tmp_path)
    started: list[subprocess.Popen[str]] = []
    ours = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # runs this Python

    def run(line: str, **environment: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                ["bash", "-c", f"exec {line}"], cwd=tmp_path, env=os.environ | ours | environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
        return started[-1]

    yield run
    for each in started:
        each.kill()
        each.communicate(timeout=60)


def done(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=BUILD_S)
    assert process.returncode == 0, out
    return out


@pytest.mark.parametrize("name", ["watch.c", "camera.cpp", "events.cpp", "keep.c", "edges.cu"])
def test_the_page_shows_the_programs_as_they_are(name):
    assert (EXAMPLES / name).read_text() in [block for _, block in SHOWN]


def make(name: str) -> gpuring.Ring:
    """Makes the ring that the page's `gpuring keep` makes, under another name."""
    asked = command("gpuring keep cam0").split()
    slots, shape = (asked[asked.index(each) + 1] for each in ("--slots", "--shape"))
    return gpuring.create(
        name, slots=int(slots), shape=[*map(int, shape.split(","))], dtype="u1",
        meta=[("pts", "i8")], device="host",
    )  # fmt: skip


def test_a_camera_in_cpp_a_consumer_in_c_and_one_in_python(name, run):
    done(run(f"{command('cc -std=c99 watch.c')} {WARNINGS}"))
    done(run(f"{command('c++ -std=c++17 camera.cpp')} {WARNINGS}"))
    with make(name) as ring, ring.consumer() as frames:
        watch = run(command("./watch").replace("cam0", name))
        poll(lambda: len(ring.stats().subscriptions) == 2)
        camera = run(f"{command('./camera').replace('cam0', name)} 10")
        for k in range(10):
            with frames.acquire(20) as slot:
                assert (slot.meta["pts"], slot.array[3, 5]) == (k, (5 + k) % 256)
        assert done(camera) == ""
        seen = [line.split() for line in done(watch).splitlines()]
        assert [(int(seq), int(pts)) for seq, pts, _ in seen] == [(8 + k, k) for k in range(10)]


@pytest.mark.parametrize(
    ("dtype", "meta", "why"),
    [("u1", [("at", "i8")], "the metadata has no field 'pts'"),
     ("<u2", [("pts", "i8")],
      "an element of 'array' has 2 bytes (<u2), and the type in C++ has 1")],
)  # fmt: skip
def test_a_camera_says_why_a_ring_does_not_suit_it(name, run, dtype, meta, why):
    done(run(f"{command('c++ -std=c++17 camera.cpp')} {WARNINGS}"))
    with gpuring.create(name, slots=2, shape=(4, 6), dtype=dtype, meta=meta, device="host"):
        camera = run(f"{command('./camera').replace('cam0', name)} 10")
        assert camera.communicate(timeout=60)[0] == f"ring '{name}': {why}\n"
        assert camera.returncode == 1


@pytest.mark.parametrize("waits", ["between frames", "for a slot"])
def test_a_ctrl_c_ends_the_camera_in_order(name, run, waits):
    """The camera's reader gets all of its frames, and then the end of the stream."""
    done(run(f"{command('c++ -std=c++17 camera.cpp')} {WARNINGS}"))
    with make(name) as ring, ring.consumer() as frames:
        camera = run(command("./camera").replace("cam0", name))
        frames.acquire(20).release()
        if waits == "for a slot":
            poll(lambda: ring.stats().subscriptions[0].lag == ring.slots)
            poll(lambda: rings.waiters(ring) == 1)
        camera.send_signal(signal.SIGINT)
        assert done(camera) == ""
        assert ring.stats().reaps == 0
        read = [slot.seq for slot in frames]
        assert read == list(range(ring.slots + 1, ring.slots + 1 + len(read)))


@pytest.mark.parametrize("ends", ["by a signal", "with the stream"])
def test_an_event_loop_reads_until_the_end(name, run, ends):
    done(run(f"{command('c++ -std=c++17 events.cpp')} {WARNINGS}"))
    with make(name) as ring, ring.producer() as producer:
        events = run(command("./events").replace("cam0", name))
        poll(lambda: ring.stats().subscriptions)
        for n in (3, 2):
            rings.put(producer, n)
            poll(lambda: ring.stats().subscriptions[0].lag == 0)
        if ends == "by a signal":
            events.send_signal(signal.SIGTERM)
        else:
            producer.close()
        assert done(events).split() == ["8", "9", "10", "11", "12"]
        assert ring.stats().reaps == 0


def test_a_ring_that_c_creates(name, run):
    done(run(f"{command('cc -std=c99 keep.c')} {WARNINGS}"))
    keep = run(command("./keep").replace("cam0", name))
    with gpuring.attach(name, timeout=20) as ring, ring.consumer() as frames:
        assert ring.spec == slot_layout.make(shape=(480, 640), dtype="u1", meta=[("pts", "<i8")])
        assert done(keep) == ""
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire(20)


def test_a_consumer_in_rust(name, run):
    if not shutil.which("rustc"):
        pytest.skip("no rustc")
    done(run(f"{command('rustc watch.rs')} --edition 2021 -D warnings"))
    with make(name) as ring:
        watch = run(command("./frames").replace("cam0", name))
        poll(lambda: ring.stats().subscriptions)
        with ring.producer() as producer, producer.claim(5) as slot:
            slot.array[:] = 2
        assert done(watch) == f"8 {2 * 480 * 640}\n"


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc: the program has a kernel")
def test_a_program_with_a_kernel_is_built_as_the_page_says(name, run):
    done(run(command("nvcc -std=c++17 edges.cu")))
    refused = run(command("./edges").replace("cam0", f"{name} 2>&1; true"))
    assert f"No ring or service named '{name}'" in refused.communicate(timeout=60)[0]


UPLOADS = """
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <cuda_runtime.h>
#include <gpuring.hpp>
static void check(cudaError_t status) {
    if (status != cudaSuccess) std::exit(1);
}
int main(int, char **argv) {
    gpuring_field image = GPURING_FIELD, meta = GPURING_FIELD;
    gpuring_create_options options = GPURING_CREATE_OPTIONS;
    image.name = "array", image.dtype = "|u1", image.dimensions = 1, image.shape[0] = 1000;
    meta.name = "pts", meta.dtype = "<i8";
    options.fields = &image, options.field_count = 1, options.meta = &meta, options.meta_count = 1;
    const char *const all = "all";
    options.subscriptions = &all, options.subscription_count = 1;
    const std::vector<unsigned char> pixels(1000, 7);
    const void *picture = pixels.data();
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
#include "page.h"
    while (std::getchar() != EOF) continue; // its reader has all of them
    check(cudaStreamDestroy(stream));
}
"""


def build_uploads(run, place):
    """The page's lines that write into a ring on a GPU, in a program."""
    (block,) = (text for _, text in SHOWN if "cudaMemcpyHostToDevice" in text)
    (place / "page.h").write_text(block.replace('"cam0"', "argv[1]"))
    (place / "uploads.cu").write_text(UPLOADS)
    done(run(command("nvcc -std=c++17 edges.cu").replace("edges", "uploads")))


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc: its compiler")
def test_what_the_page_says_of_uploads_is_built(run, tmp_path):
    build_uploads(run, tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc: its compiler")
def test_frames_that_are_uploaded_as_the_page_says_reach_python(name, run, tmp_path):
    build_uploads(run, tmp_path)
    uploads = run(f"./uploads {name}")
    until(Path("/dev/shm", f"gpuring.{name}").exists, uploads)
    with gpuring.attach(name) as ring, ring.consumer("all") as frames:
        for k in range(900):
            with frames.acquire() as slot:  # raises PeerLost if the program dies
                assert slot.meta["pts"] == k
                assert array_of(slot).tolist() == [7] * 1000
        assert done(uploads) == ""
        with pytest.raises(gpuring.EndOfStream):
            frames.acquire()


@pytest.mark.gpu
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc: the program has a kernel")
@pytest.mark.parametrize("sync", ["timeline", "event"])
@pytest.mark.parametrize("memory", ["ipc", "vmm", "pool"])
def test_a_kernel_finds_the_edges_that_python_draws(name, run, memory, sync):
    able, why = kinds.supported(memory, 0)
    if not able:
        pytest.skip(why)
    done(run(command("nvcc -std=c++17 edges.cu")))
    image = np.zeros((480, 640), "u1")
    with gpuring.create(
        name, slots=4, shape=image.shape, dtype="u1", meta=[("pts", "i8")], device="cuda",
        memory=memory, sync=sync,
    ) as ring:  # fmt: skip
        program = run(command("./edges").replace("cam0", name))
        until(lambda: ring.stats().subscriptions, program)
        with ring.producer() as producer:
            for k in range(10):
                image[:, 10 * k : 10 * k + 5] = 255  # bars with two edges, the first with one
                with producer.claim(20) as slot:
                    slot.copy_from(image)
                    slot.meta["pts"] = k
        seen = [line.split() for line in done(program).splitlines()]
    assert seen == [[str(4 + k), str(k), str(480 * (2 * k + 1))] for k in range(10)]


@pytest.mark.parametrize("tool", ["pkg-config", "make"])
def test_a_program_is_built_with(tool, name, run, tmp_path):
    if not shutil.which(tool):
        pytest.skip(f"no {tool}")
    if tool == "make":
        (asked,) = (block for kind, block in SHOWN if kind == "make")
        (tmp_path / "Makefile").write_text(asked)
        done(run("make watch"))
    else:
        folder = done(run("python -m gpuring.config --pkg-config")).strip()
        done(run(command("cc watch.c"), PKG_CONFIG_PATH=folder))
    with make(name) as ring:
        watch = run(f"./watch {name}")
        poll(lambda: ring.stats().subscriptions)
        with ring.producer() as producer:
            rings.put(producer)  # while it is there, so that a late reader gets a frame
        assert done(watch).startswith("8 ")


@pytest.mark.slow
def test_cmake(name, run, tmp_path):
    if not shutil.which("cmake"):
        pytest.skip("no cmake")
    (asked,) = (block for kind, block in SHOWN if kind == "cmake")
    (tmp_path / "CMakeLists.txt").write_text(asked)
    done(run("cmake -S . -B made"))
    done(run("cmake --build made"))
    done(run("cmake --install made --prefix there"))
    with make(name) as ring, ring.consumer() as frames:
        for program in ("made/camera", "there/bin/camera"):
            done(run(f"{program} {name} 1"))
            assert frames.acquire(20).meta["pts"] == 0
    (tmp_path / "CMakeLists.txt").write_text(asked.replace("0.1.0", "0.2"))
    refused = run("cmake -S . -B of-another-version").communicate(timeout=BUILD_S)[0]
    assert "version: 0.1.0" in refused


def test_a_program_goes_to_another_machine_with_its_library(name, run, tmp_path):
    shutil.copy(config.LIBRARY, tmp_path)
    line = "cc -std=c99 watch.c -o watch $(python -m gpuring.config --cflags) libgpuring.so.0"
    done(run(f"{line} -Wl,-rpath,'$ORIGIN'"))
    (tmp_path / "moved").mkdir()
    for each in ("watch", "libgpuring.so.0"):
        (tmp_path / each).rename(tmp_path / "moved" / each)
    with make(name) as ring:
        watch = run(f"moved/watch {name}")
        poll(lambda: ring.stats().subscriptions)
        with ring.producer() as producer:
            rings.put(producer)
        assert done(watch).startswith("8 ")


def test_the_version_is_that_of_the_package():
    found = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert found
    include = ROOT / "gpuring" / "include"
    assert f"Version: {found[1]}\n" in (include / "pkgconfig" / "gpuring.pc").read_text()
    told = (include / "cmake" / "gpuring-config-version.cmake").read_text()
    assert f"set(PACKAGE_VERSION {found[1]})\n" in told
    assert f"find_package(gpuring {found[1]} CONFIG" in PAGE
