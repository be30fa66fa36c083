"""gpuring.hpp: what its objects own, and what they refuse."""

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
from tests.helpers.processes import PATIENCE_S, poll, watches_names
from tests.helpers.rings import put, segments_of, small_ring, waiters
from tests.native.api.conftest import STRICT

CXX = shutil.which("g++") or shutil.which("c++")


def build_cpp(text: str, place: Path) -> None:
    if CXX is None:
        pytest.skip("no compiler")
    (place / "it.cpp").write_text(text)
    command = [CXX, "-std=c++17", *STRICT, "-O1", place / "it.cpp", "-o", place / "it"]
    subprocess.run([*command, *config.cflags(), *config.libs()], check=True, timeout=60)


def run_cpp(text: str, name: str, place: Path, *arguments: str) -> int:
    """Compiles and runs a program.  Returns its exit status."""
    build_cpp(text, place)
    return subprocess.run([place / "it", name, *arguments], check=False, timeout=60).returncode


CREATES = """
#include <gpuring.hpp>
int main(int, char **argv) {
    gpuring_field field = GPURING_FIELD;
    gpuring_create_options options = GPURING_CREATE_OPTIONS;
    field.name = "array", field.dtype = "<f4", field.dimensions = 1, field.shape[0] = 3;
    options.fields = &field, options.field_count = 1;
    const auto ring = gpuring::Ring::create(argv[1], options);
    gpuring::Producer producer(ring);
    gpuring::Consumer frames(ring);
    if (frames.acquire(gpuring::milliseconds(1))) return 1;
    {
        auto slot = producer.claim();
        if (slot->shape() != std::vector<std::uint64_t>{3}) return 7;
        slot->set_shape({1, 2});
        if (slot->shape() != std::vector<std::uint64_t>{1, 2}) return 8;
        if (slot->array<float>().size() != 2) return 10;
        slot.reset(); // and abandon
        slot = producer.claim();
        slot->array<float>()[2] = 5;
        slot->publish();
    }
    const auto frame = frames.next();
    if (frame->array<float>()[2] != 5) return 2;
    if (frame->shape() != std::vector<std::uint64_t>{3}) return 9;
    try {
        frames.latest();
        return 3;
    } catch (const gpuring::Error &error) {
        if (error.status() != GPURING_INVALID) return 4;
    }
    try {
        gpuring_attach_options of_another = GPURING_ATTACH_OPTIONS;
        of_another.owner = 12345;
        gpuring::Ring(argv[1], of_another);
        return 5;
    } catch (const gpuring::Error &error) {
        return error.status() == GPURING_NOT_PERMITTED ? 0 : 6;
    }
}
"""


def test_objects_of_cpp_leave_the_ring_when_they_go(name, tmp_path):
    assert run_cpp(CREATES, name, tmp_path) == 0
    assert segments_of(name) == []


SPANS = """
#include <gpuring.hpp>
void gray(const gpuring::WriteSlot &to, const gpuring::ReadSlot &from);
void gray(const gpuring::WriteSlot &to, const gpuring::ReadSlot &from) {
    std::span<float> written = to.array<float>();
    std::span read{from.array<float>()};
    written[0] = read[0];
}
"""


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_an_array_of_cpp_is_given_to_a_span(compiler, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip("no such compiler")
    (tmp_path / "it.cpp").write_text(SPANS)
    command = [compiler, "-std=c++20", *STRICT, "-fsyntax-only", *config.cflags()]
    subprocess.run([*command, tmp_path / "it.cpp"], check=True, timeout=60)


TWICE = """
#include <gpuring.hpp>
template <class Verb> static bool is_refused(Verb verb) {
    try {
        verb();
    } catch (const gpuring::Error &error) {
        return error.status() == GPURING_INVALID;
    }
    return false;
}
int main(int, char **argv) {
    const gpuring::Ring ring(argv[1]);
    gpuring::Producer producer(ring);
    gpuring::Consumer frames(ring);
    auto slot = producer.claim();
    slot->publish();
    if (!is_refused([&] { slot->publish(); })) return 1;
    if (!is_refused([&] { slot->set_shape({1}); })) return 2;
    if (!is_refused([&] { slot->array<unsigned char>(); })) return 3;
    if (!is_refused([&] { slot->set_meta("pts", std::int64_t(7)); })) return 4;
    auto frame = frames.acquire();
    frame->release();
    if (!is_refused([&] { frame->array<unsigned char>(); })) return 5;
    if (!is_refused([&] { frame->meta<std::int64_t>("pts"); })) return 6;
    return is_refused([&] { frame->release(); }) ? 0 : 7;
}
"""


def test_a_slot_of_cpp_is_not_used_after_its_end(name, tmp_path):
    with small_ring(name, meta=[("pts", "i8")]):
        assert run_cpp(TWICE, name, tmp_path) == 0


OPTIONS = """
#include <gpuring.hpp>
#include <iostream>
template <class Verb> static void told(Verb verb) {
    try {
        verb();
        std::cout << "accepted\\n";
    } catch (const gpuring::Error &error) {
        std::cout << error.what() << '\\n';
    }
}
int main(int, char **argv) {
    gpuring::Ring ring(argv[1]);
    told([&] { gpuring::Producer(ring, {}); });
    gpuring_producer_options writes = GPURING_PRODUCER_OPTIONS;
    writes.spin_ns = -2;
    told([&] { gpuring::Producer(ring, writes); });
    gpuring_consumer_options reads = GPURING_CONSUMER_OPTIONS;
    reads.spin_ns = -3;
    told([&] { gpuring::Consumer(ring, reads); });
    reads.spin_ns = 0, reads.subscription = "rec", reads.durable = true, reads.patience_ns = -4;
    told([&] { gpuring::Consumer(ring, reads); });
    gpuring_subscribe_options keeps = GPURING_SUBSCRIBE_OPTIONS;
    keeps.patience_ns = -5;
    told([&] { ring.subscribe("rec", keeps); });
    told([&] { ring.subscribe("\\xe9"); });
    gpuring_field field = GPURING_FIELD;
    gpuring_create_options makes = GPURING_CREATE_OPTIONS;
    const auto create = [&] { gpuring::Ring::create(std::string(argv[1]) + ".new", makes); };
    makes.field_count = 1;
    told(create);
    makes.fields = &field;
    told(create);
    field.name = "left";
    told(create);
    field.dtype = "float32";
    told(create);
    field.dtype = "f4", field.dimensions = 9;
    told(create);
    field.dimensions = 0, makes.meta = &field; // meta_count is 0
    told(create);
}
"""


def test_options_that_mean_nothing_are_refused_by_their_names(name, tmp_path):
    build_cpp(OPTIONS, tmp_path)
    with small_ring(name) as ring:
        told = subprocess.check_output([tmp_path / "it", name], text=True, timeout=PATIENCE_S)
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
    ]
    assert segments_of(f"{name}.new") == []


MOVES = """
#include <gpuring.hpp>
int main(int, char **argv) {
    const gpuring::Ring ring(argv[1]); // of two slots
    gpuring::Producer producer(ring);
    gpuring::Consumer frames(ring);
    std::optional<gpuring::WriteSlot> slot = producer.claim();
    const auto first = slot->seq();
    slot = producer.claim(); // the first one is abandoned
    slot->publish();
    std::optional<gpuring::ReadSlot> newest = frames.acquire();
    if (newest->seq() != first + 1) return 1;
    producer.claim()->publish();
    if (producer.claim(gpuring::seconds(0))) return 2;
    newest = frames.acquire(); // the one before is released
    if (newest->seq() != first + 2) return 3;
    if (!producer.claim(gpuring::seconds(0))) return 4;
    newest.reset();
    std::vector<gpuring::ReadSlot> window;
    for (int k = 0; k < 2; k++) {
        producer.claim()->publish();
        window.push_back(std::move(*frames.acquire()));
    }
    window.erase(window.begin());
    return window[0].seq() == first + 5 && producer.claim(gpuring::seconds(0)) ? 0 : 5;
}
"""


def test_a_slot_of_cpp_that_another_one_is_assigned_to_is_ended(name, tmp_path):
    with small_ring(name, slots=2):
        assert run_cpp(MOVES, name, tmp_path) == 0


METADATA = """
#include <cstdio>
#include <gpuring.hpp>
struct Metadata {
    std::int64_t pts;
    float exposure;
    double gain;
};
int main(int, char **argv) {
    const std::int64_t pts = 7;
    gpuring_field image = GPURING_FIELD;
    gpuring_create_options options = GPURING_CREATE_OPTIONS;
    image.name = "array", image.dtype = "u1", image.dimensions = 1, image.shape[0] = 4;
    options.fields = &image, options.field_count = 1;
    MAKE
    const auto ring = gpuring::Ring::create(argv[1], options);
    if (ring.info().meta_nbytes != sizeof(Metadata)) return 1;
    gpuring::Producer producer(ring);
    auto slot = producer.claim();
    WRITE
    slot->publish();
    std::puts("published");
    std::fflush(stdout);
    std::getchar();
}
"""


def test_metadata_is_written_as_a_struct_with_its_padding(name, tmp_path):
    """The struct is that of the page."""
    shown = re.findall(r"^```cpp\n(.*?)^```$", (ROOT / "docs" / "c.md").read_text(), re.M | re.S)
    (make,) = (each for each in shown if "struct Metadata" in each)
    (write,) = (each for each in shown if each.startswith("const Metadata now"))
    make = make.partition("};\n")[2]  # the struct is at the head of the program
    build_cpp(METADATA.replace("MAKE", make).replace("WRITE", write), tmp_path)
    command = [tmp_path / "it", name]
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


FOLLOWS = """
#include <cstring>
#include <fstream>
#include <gpuring.hpp>
static int mapped(const std::string &name) {
    std::ifstream maps("/proc/self/maps");
    int n = 0;
    for (std::string line; std::getline(maps, line);) n += line.find(name) != line.npos;
    return n;
}
static int follow(const std::string &name) {
    gpuring_field field = GPURING_FIELD;
    gpuring_create_options make = GPURING_CREATE_OPTIONS;
    gpuring_consumer_options options = GPURING_CONSUMER_OPTIONS;
    field.name = "array", field.dtype = "|u1", field.dimensions = 1, field.shape[0] = 4;
    make.fields = &field, make.field_count = 1, make.slots = 2;
    options.reattach = true;
    auto made = std::make_unique<gpuring::Ring>(gpuring::Ring::create(name, make));
    gpuring::Consumer frames(gpuring::Ring(name), options);
    std::vector<gpuring::Ring> rings;
    std::vector<gpuring::ReadSlot> held; // some over a restart, and some to the end
    for (;; made = std::make_unique<gpuring::Ring>(gpuring::Ring::create(name, make))) {
        gpuring::Producer producer(*made);
        producer.claim()->publish();
        auto frame = frames.acquire(gpuring::seconds(20));
        if (!frame || frame->restarted() != (make.slots > 2)) return 1;
        rings.push_back(frames.ring());
        held.push_back(std::move(*frame));
        if (make.slots == 4) held.clear();
        if (make.slots++ == 6) break;
        made.reset();
    }
    for (std::uint32_t k = 0; k < rings.size(); k++)
        if (rings[k].info().slots != 2 + k || rings[k].field().nbytes != 4) return 2;
    return rings.size() == 5 ? 0 : 3;
}
int main(int, char **argv) {
    const int status = follow(argv[1]);
    return status ? status : mapped(argv[1]);
}
"""


def test_a_ring_of_cpp_is_kept_over_restarts_and_goes_with_its_last_copy(name, tmp_path):
    assert run_cpp(FOLLOWS, name, tmp_path) == 0
    assert segments_of(name) == []


LATE = """
#include <gpuring.hpp>
int main(int, char **argv) {
    const gpuring::milliseconds late(-1);
    const gpuring::Ring ring(argv[1], late);
    gpuring::Producer producer(ring);
    gpuring::Consumer frames(ring);
    if (frames.acquire(late)) return 1;
    while (auto slot = producer.claim(late)) slot->publish();
    return frames.acquire(late) ? 0 : 2;
}
"""


def test_a_deadline_of_cpp_that_has_passed_does_not_wait(name, tmp_path):
    with small_ring(name):
        assert run_cpp(LATE, name, tmp_path) == 0


WAITS = """
#include <cstdio>
#include <gpuring.hpp>
static bool is_missing(const std::string &name) {
    try {
        gpuring::Ring ring(name);
    } catch (const gpuring::Error &error) {
        return error.status() == GPURING_NOT_FOUND;
    }
    return false;
}
int main(int, char **argv) {
    if (!is_missing(argv[1])) return 1;
    std::puts("attaches");
    std::fflush(stdout);
    const gpuring::Ring ring(argv[1], std::nullopt);
    const std::string verb = argv[2];
    if (verb == "claim") {
        gpuring::Producer producer(ring);
        for (auto k = ring.info().slots; k; k--) producer.claim(gpuring::seconds(0))->publish();
        return producer.claim() ? 0 : 2;
    }
    gpuring_consumer_options options = GPURING_CONSUMER_OPTIONS;
    options.lossy = verb == "latest";
    gpuring::Consumer frames(ring, options);
    const auto frame = verb == "next"     ? frames.next()
                       : verb == "latest" ? frames.latest()
                                          : frames.acquire();
    return frame ? 0 : 3;
}
"""


@pytest.mark.parametrize("verb", ["claim", "acquire", "next", "latest"])
def test_what_waits_in_cpp_without_a_timeout_waits_in_python(name, tmp_path, verb):
    """By default an attach does not wait, and verbs wait for ever.  With a timeout of None, an
    attach does, too."""
    build_cpp(WAITS, tmp_path)
    command = [tmp_path / "it", name, verb]
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


OTHERS = (
    FOLLOWS.partition("static int follow(")[0]
    + """
static std::unique_ptr<gpuring::Ring> made; // the ring of its name
static void restart(const std::string &name, std::uint32_t slots) {
    gpuring_field field = GPURING_FIELD;
    gpuring_create_options make = GPURING_CREATE_OPTIONS;
    field.name = "array", field.dtype = "|u1", field.dimensions = 1, field.shape[0] = 4;
    make.fields = &field, make.field_count = 1, make.slots = slots;
    made.reset();
    made = std::make_unique<gpuring::Ring>(gpuring::Ring::create(name, make));
}
static bool reads(gpuring::Consumer &frames) {
    gpuring::Producer producer(*made);
    producer.claim()->publish();
    return frames.acquire(gpuring::seconds(20)).has_value();
}
static int join_where_it_led(const std::string &name, bool moves_on) {
    gpuring_consumer_options options = GPURING_CONSUMER_OPTIONS;
    options.reattach = true;
    restart(name, 2);
    auto first = std::make_unique<gpuring::Consumer>(gpuring::Ring(name), options);
    if (!reads(*first)) return 1;
    restart(name, 3);
    if (!reads(*first)) return 2;
    const gpuring::Ring ring = first->ring();
    {
        if (moves_on) first.reset();
        options.reattach = moves_on;
        gpuring::Consumer second(ring, options);
        first.reset();
        if (moves_on) restart(name, 4);
        if (!reads(second)) return 3;
    }
    const bool valid = ring.info().slots == 3 && ring.field().nbytes == 4;
    made.reset();
    return valid ? 0 : 4;
}
int main(int, char **argv) {
    const int status = join_where_it_led(argv[1], std::strcmp(argv[2], "moves-on") == 0);
    return status ? status : mapped(argv[1]);
}
"""
)


@pytest.mark.parametrize("second", ["stays", "moves-on"])
def test_a_ring_that_a_restart_has_led_to_can_be_joined_by_others(name, tmp_path, second):
    """The ring is given up once, by the last one that has it."""
    assert run_cpp(OTHERS, name, tmp_path, second) == 0
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
