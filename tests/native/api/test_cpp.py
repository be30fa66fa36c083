"""gpuring.hpp: what its objects own, and what they and the functions of gpuring.h refuse."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import gpuring
from gpuring import config
from tests import ROOT
from tests.helpers.compiled import BUILD_S, PROGRAMS
from tests.helpers.processes import PATIENCE_S, poll, watches_names
from tests.helpers.rings import put, segments_of, small_ring, waiters
from tests.native.api.conftest import STRICT

CPP = ROOT / PROGRAMS / "cpp"
CXX = shutil.which("g++") or shutil.which("c++")


def build_cpp(program: str, place: Path) -> Path:
    if CXX is None:
        pytest.skip("no compiler")
    command = [CXX, "-std=c++17", *STRICT, "-O1", "-I", place, CPP / f"{program}.cpp"]
    command += ["-o", place / program]
    subprocess.run([*command, *config.cflags(), *config.libs()], check=True, timeout=BUILD_S)
    return place / program


def run_cpp(program: str, name: str, place: Path, *arguments: str) -> int:
    """Compiles and runs a program.  Returns its exit status."""
    command = [build_cpp(program, place), name, *arguments]
    return subprocess.run(command, check=False, timeout=PATIENCE_S).returncode


def shown(words: str) -> str:
    """The block of the page that has these words."""
    blocks = re.findall(r"^```cpp\n(.*?)^```$", (ROOT / "docs" / "c.md").read_text(), re.M | re.S)
    (block,) = (each for each in blocks if words in each)
    return block


def cpu_ticks(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return int(stat[11]) + int(stat[12])


def test_objects_of_cpp_leave_the_ring_when_they_go(name, tmp_path):
    assert run_cpp("creates", name, tmp_path) == 0
    assert segments_of(name) == []


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_an_array_of_cpp_is_given_to_a_span(compiler, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip("no such compiler")
    command = [compiler, "-std=c++20", *STRICT, "-fsyntax-only", *config.cflags()]
    subprocess.run([*command, CPP / "spans.cpp"], check=True, timeout=60)


def test_a_slot_of_cpp_is_not_used_after_its_end(name, tmp_path):
    with small_ring(name, meta=[("pts", "i8")]):
        assert run_cpp("twice", name, tmp_path) == 0


def test_options_that_mean_nothing_are_refused_by_their_names(name, tmp_path):
    program = build_cpp("options", tmp_path)
    with small_ring(name) as ring:
        told = subprocess.check_output([program, name], text=True, timeout=PATIENCE_S)
        assert not ring.stats().peers
        assert not ring.stats().subscriptions
    spin = "and of those below 0 only GPURING_SPIN_ADAPTIVE means something"
    patience = "and of those below 0 only GPURING_FOREVER means something"
    assert told.splitlines() == [
        "the size of a structure is 0, which is too small: GPURING_PRODUCER_OPTIONS sets it",
        f"spin_ns is -2, {spin}",
        f"spin_ns is -3, {spin}",
        f"patience_ns is -4, {patience}",
        f"patience_ns is -5, {patience}",
        "a subscription's name is UTF-8, and not '\ufffd'",
        "`fields` is NULL, and `field_count` is not 0",
        "fields[0]: its name is missing or is not UTF-8",
        "field 'left': its dtype is missing or is not UTF-8",
        "field 'left': there is no such dtype as 'float32'. "
        'Write "|u1" for uint8, and "<f4" for float32',
        "field 'left' has at most 8 dimensions, not 9",
        "accepted",
        "`subscriptions` is NULL, and `subscription_count` is not 0",
        "there is no gpuring_replace of number 3",
        "`ring` is NULL",
        "`ring` is NULL",
    ]
    assert segments_of(f"{name}.new") == []


def test_a_slot_of_cpp_that_another_one_is_assigned_to_is_ended(name, tmp_path):
    with small_ring(name, slots=2):
        assert run_cpp("moves", name, tmp_path) == 0


def test_a_batch_of_cpp_ends_the_slots_that_are_left_in_it(name, tmp_path):
    assert run_cpp("batches", name, tmp_path) == 0


def test_the_batches_of_the_page_read_and_write(name, tmp_path):
    (tmp_path / "batches.h").write_text(shown("frames.acquire_many"))
    with small_ring(name, 8) as ring, ring.producer() as producer, ring.consumer() as frames:
        put(producer, 2, 5)
        assert run_cpp("batched", name, tmp_path) == 0
        with frames.acquire_many(8, 0) as batch:
            assert [int(slot.array[0]) for slot in batch] == [5, 5, 7, 7, 7, 7]


def test_metadata_is_written_as_a_struct_with_its_padding(name, tmp_path):
    """The struct is that of the page."""
    make, write = shown("struct Metadata {"), shown("const Metadata now")
    make = make.partition("};\n")[2]  # the struct is at the head of the program
    (tmp_path / "make.h").write_text(make)
    (tmp_path / "write.h").write_text(write)
    command = [build_cpp("metadata", tmp_path), name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout.readline() == "published\n"
            with gpuring.attach(name) as ring, ring.consumer(start="oldest") as frames:
                assert ring.spec.meta.fields["gain"] == (np.dtype("f8"), 16)
                with frames.acquire(0) as slot:
                    seen = [slot.meta[each].item() for each in ("pts", "exposure", "gain")]
            assert seen == [7, pytest.approx(0.01), 2.0]
            program.communicate("", timeout=PATIENCE_S)
            assert program.returncode == 0
        finally:
            program.kill()


def test_a_ring_of_cpp_is_kept_over_restarts_and_goes_with_its_last_copy(name, tmp_path):
    assert run_cpp("follows", name, tmp_path) == 0
    assert segments_of(name) == []


def test_a_deadline_of_cpp_that_has_passed_does_not_wait(name, tmp_path):
    with small_ring(name):
        assert run_cpp("late", name, tmp_path) == 0


@pytest.mark.parametrize("verb", ["claim", "acquire", "next", "latest"])
def test_what_waits_in_cpp_without_a_timeout_waits_in_python(name, tmp_path, verb):
    """By default an attach does not wait, and verbs wait for ever.  With a timeout of None, an
    attach does, too."""
    command = [build_cpp("waits", tmp_path), name, verb]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout.readline() == "attaches\n"
            poll(lambda: program.poll() or watches_names(program.pid))
            with small_ring(name) as ring, ring.consumer() as frames, ring.producer() as producer:
                poll(lambda: program.poll() or waiters(ring) == 1)
                if verb == "claim":
                    frames.acquire(0).release()
                else:
                    put(producer)
                assert program.wait(PATIENCE_S) == 0
        finally:
            program.kill()


def test_who_spins_for_ever_is_never_among_the_sleepers(name, tmp_path):
    command = [build_cpp("waits", tmp_path), name, "spin"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout.readline() == "attaches\n"
            with small_ring(name) as ring, ring.producer() as producer:
                poll(lambda: program.poll() or ring.stats().subscriptions)
                seen, before = set(), cpu_ticks(program.pid)
                while seen <= {0} and cpu_ticks(program.pid) < before + 20:
                    seen.add(waiters(ring))
                put(producer)
                assert program.wait(PATIENCE_S) == 0
                assert seen == {0}
        finally:
            program.kill()


@pytest.mark.parametrize("second", ["stays", "moves-on"])
def test_a_ring_that_a_restart_has_led_to_can_be_joined_by_others(name, tmp_path, second):
    """The ring is given up once, by the last one that has it."""
    assert run_cpp("others", name, tmp_path, second) == 0
    assert segments_of(name) == []


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("-std=c++14", "gpuring.hpp needs C++17"),
        ("-fno-exceptions", "without them include gpuring.h"),
    ],
)
def test_a_compiler_is_told_what_the_header_takes(option, told):
    if CXX is None:
        pytest.skip("no compiler")
    command = [CXX, "-std=c++17", option, "-fsyntax-only", *config.cflags()]
    command += ["-include", "gpuring.hpp"]
    command += ["-x", "c++", "/dev/null"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert told in done.stderr


def test_what_is_null_is_refused(name, tmp_path):
    with small_ring(name):
        assert run_cpp("null", name, tmp_path) == 0


def test_an_owner_a_gate_and_a_name_that_mean_nothing_are_refused(name, tmp_path):
    with small_ring(name):
        assert run_cpp("no_meaning", name, tmp_path) == 0


def test_an_object_of_cpp_without_a_ring_says_so(name, tmp_path):
    """One that was moved from, and one that a forked child has of its parent."""
    with small_ring(name):
        assert run_cpp("no_ring", name, tmp_path) == 0
