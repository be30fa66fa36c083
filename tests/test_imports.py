"""What import-linter does not see: which layer compiled modules import from, every circle, and what
tests import.

Its contracts are in pyproject.toml, and `./check` runs it.
"""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name

import pytest

from tests import ROOT, TESTS

IMPORT = re.compile(r"^ *(?:from (gpuring[\w.]*|\.[\w.]*) )?c?import (\([^)]*\)|.*)", re.MULTILINE)
FILES = {
    path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "gpuring").rglob("*.p*")
    if path.suffix in (".py", ".pyi", ".pyx", ".pxd")
}
COMPILED = {name for path, name in FILES.items() if path.suffix == ".pyx"}


def imported(text: str, modules: set[str], package: str = "") -> set[str]:
    """Which of `modules` this text imports or cimports.  It is the text of a module of
    `package`."""
    found = set()
    for said, names in IMPORT.findall(text):
        source = resolve_name(said, package) if said else ""
        inner = {".".join(filter(None, (source, name))) for name in re.findall(r"[\w.]+", names)}
        found |= inner & modules or {source}
    return found & modules


def imports() -> dict[str, set[str]]:
    """Which modules each module imports."""
    found: dict[str, set[str]] = {name: set() for name in FILES.values()}
    for path, name in FILES.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        found[name] |= imported(path.read_text(), set(found), package) - {name}
    return found


def wrong(imports: set[tuple[str, str]]) -> list[str]:
    """The imports that do not lead to a layer below."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads pyproject.toml")
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = enumerate(told["contracts"][0]["layers"])
    level = {part: k for k, layer in layers for part in layer.split(" | ")}
    parts = {
        each: each.split(".")[1] if "." in each else "cli" for pair in imports for each in pair
    }
    return [
        f"{by} imports {what}"
        for by, what in sorted(imports)
        if parts[by] != parts[what] and level[parts[by]] >= level[parts[what]]
    ]


def test_compiled_modules_import_downwards_and_are_imported_from_above():
    found = {(by, what) for by, of in imports().items() for what in of if COMPILED & {by, what}}
    assert len(found) > 50
    assert not wrong(found)


def test_no_module_imports_itself_again():
    TopologicalSorter(imports()).prepare()  # raises CycleError, which names the circle


def test_no_file_of_tests_imports_from_another_one():
    """What several need is in tests/helpers, or in a module of their folder."""
    said = re.compile(r"^ *(from [\w.]*\btest_\w* import|from [\w.]+ import .*\btest_)", re.M)
    assert not [str(path) for path in TESTS.rglob("*.py") if said.search(path.read_text())]


def test_what_is_wrong_is_found():
    modules = {"gpuring.native", "gpuring.native.peer", "gpuring.ring", "gpuring.ring.slot"}
    for text, found in {
        "from gpuring.native cimport peer, waits": {"gpuring.native.peer"},
        "from gpuring.native import (\n    Header,\n    peer,\n)": {"gpuring.native.peer"},
        "from gpuring.native.peer cimport *": {"gpuring.native.peer"},
        "    cimport gpuring.ring.slot": {"gpuring.ring.slot"},
        "import os, gpuring.ring\nfrom libc cimport math": {"gpuring.ring"},
        "# from gpuring import ring": set(),
    }.items():
        assert imported(text, modules) == found
    for text in ("from . import slot", "from .slot import x", "from ..ring import slot"):
        assert imported(text, modules, "gpuring.ring") == {"gpuring.ring.slot"}
    up, down = ("gpuring.native.peer", "gpuring.ring.slot"), ("gpuring.ring", "gpuring.native")
    assert wrong({up, down}) == ["gpuring.native.peer imports gpuring.ring.slot"]
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"b"}}).prepare()
