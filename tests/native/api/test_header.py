"""gpuring.h and gpuring.hpp as a compiler sees them, and the library as a linker does."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuring import config
from tests.helpers.compiled import CC
from tests.helpers.rings import small_ring
from tests.helpers.support import segments_of
from tests.native.api.conftest import STRICT

CXX = shutil.which("g++") or shutil.which("c++")
TEXT = (config.INCLUDE / "gpuring.h").read_text()
CODE = re.sub(r"/\*.*?\*/", "", TEXT, flags=re.DOTALL)


def compile_with(compiler: str | None, standard: str, header: str, place: Path) -> None:
    if compiler is None:
        pytest.skip("no compiler")
    source = place / ("it.cpp" if "++" in standard else "it.c")
    source.write_text(f"#include <{header}>\n#include <{header}>\n")
    more = ["-Wconversion", "-Wshadow", "-Wextra-semi"] if "++" in standard else ["-Wconversion"]
    subprocess.run(
        [compiler, f"-std={standard}", *STRICT, *more, *config.cflags(), "-fsyntax-only", source],
        check=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("standard", ["c99", "c11", "c17"])
def test_the_header_is_clean_c(standard, tmp_path):
    compile_with(CC, standard, "gpuring.h", tmp_path)


@pytest.mark.parametrize("header", ["gpuring.h", "gpuring.hpp"])
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_the_headers_are_clean_cpp(standard, header, tmp_path):
    compile_with(CXX, standard, header, tmp_path)


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
        slot->array<float>()[2] = 5;
        slot->publish();
        producer.claim(); // and abandon
    }
    if (frames.next()->array<float>()[2] != 5) return 2;
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


def run_cpp(text: str, name: str, place: Path) -> int:
    """The exit status of a program."""
    if CXX is None:
        pytest.skip("no compiler")
    (place / "it.cpp").write_text(text)
    command = [CXX, "-std=c++17", *STRICT, "-O1", place / "it.cpp", "-o", place / "it"]
    subprocess.run([*command, *config.cflags(), *config.libs()], check=True, timeout=60)
    return subprocess.run([place / "it", name], check=False, timeout=60).returncode


def test_objects_of_cpp_leave_the_ring_when_they_go(name, tmp_path):
    assert run_cpp(CREATES, name, tmp_path) == 0
    assert segments_of(name) == []


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
    auto frame = frames.acquire();
    frame->release();
    return is_refused([&] { frame->release(); }) ? 0 : 3;
}
"""


def test_a_slot_of_cpp_is_ended_once(name, tmp_path):
    with small_ring(name):
        assert run_cpp(TWICE, name, tmp_path) == 0


def test_every_name_has_the_prefix():
    names = re.findall(r"^#define (\w+)", CODE, re.M)
    names += re.findall(r"^\} (\w+);", CODE, re.M) + re.findall(r"^typedef .* (\w+);", CODE, re.M)
    names += re.findall(r"^(?:typedef )?(?:struct|enum) (\w+)", CODE, re.M)
    names += re.findall(r"^[\w ]+?\*?\b(\w+)\(", CODE, re.M)
    names += re.findall(r"^    ([A-Z]\w+) = \d+", CODE, re.M)
    assert len(names) > 80
    assert [each for each in names if not re.match("gpuring_|GPURING_", each)] == []
    assert "atomic" not in CODE.lower()


def test_each_structure_begins_with_its_size():
    found = re.findall(r"^typedef struct (\w+) \{\s*(.*?;)", CODE, re.M | re.S)
    assert len(found) > 6
    assert [name for name, first in found if first != "size_t size;"] == ["gpuring_error"]


def dynamic(*options: str) -> str:
    if not shutil.which("readelf"):
        pytest.skip("no readelf")
    command = ["readelf", "-W", *options, config.LIBRARY]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_the_library_needs_neither_python_nor_cuda_and_is_never_unloaded():
    told = dynamic("-d")
    needed = re.findall(r"NEEDED.*\[(.*?)\]", told)
    of_c = r"(libc|libpthread|libdl|librt|ld-linux.*)\.so\.\d"
    assert [each for each in needed if not re.fullmatch(of_c, each)] == []
    assert "SONAME" in told
    assert "[libgpuring.so.0]" in told
    assert "NODELETE" in told


def test_the_functions_of_the_header_have_a_public_version_and_all_others_a_private_one():
    declared = set(re.findall(r"\b(gpuring_\w+)\(", CODE))
    symbols = re.findall(r" (\w+)@@(GPURING_\w+)", dynamic("--dyn-syms"))
    public = {name for name, version in symbols if version == "GPURING_1" and name != version}
    assert public == declared
    private = {name for name, version in symbols if version == "GPURING_PRIVATE"} - {
        "GPURING_PRIVATE"
    }
    assert {each.partition("_")[0] for each in private} == {"gr", "gd", "gh", "gm"}


def test_config_says_what_it_is_asked(capsys):
    config.main(["--cflags", "--libs"])
    told = capsys.readouterr().out.split()
    assert told == [*config.cflags(), *config.libs()]
    with pytest.raises(SystemExit):
        config.main([])
