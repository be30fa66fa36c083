"""gpuring.h and gpuring.hpp as a compiler sees them, and the library as a linker does."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuring import config
from tests.helpers.compiled import CC
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


def test_the_library_says_its_version():
    """It is that of the header, which lies beside it."""
    (version,) = re.findall(r"^#define GPURING_API_VERSION (\d+)$", CODE, re.M)
    assert ctypes.CDLL(str(config.LIBRARY)).gpuring_api_version() == int(version)


def test_config_says_what_it_is_asked(capsys):
    config.main(["--cflags", "--libs"])
    told = capsys.readouterr().out.split()
    assert told == [*config.cflags(), *config.libs()]
    with pytest.raises(SystemExit):
        config.main([])
