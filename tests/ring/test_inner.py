"""Services, bridges and commands touch no underscore name of another folder: gpuring/ring/inner.py
says what they may ask of a ring beyond what users may.

Compiled modules are left out: the path of a call reads the fields of compiled slots and peers.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gpuring

PACKAGE = Path(gpuring.__file__).parent
HOOKS = {"_slot_type", "_metas", "_give_back", "_finish", "_end"}
"""What classes that derive from producers, consumers and slots may override (inner.py)."""
OF_OTHERS = {"_exit", "_agent"}
"""Names of Python's os, and of NIXL."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(text: str, suffix: str = ".py") -> set[str]:
    """The underscore names that a source defines: functions, classes, variables, attributes."""
    if suffix != ".py":
        kinds = "cdef|cpdef|def|class" if suffix == ".pyx" else ""
        lines = re.findall(rf"^ *(?:{kinds}) .*", text, re.MULTILINE)
        return set(re.findall(r"\b_[a-z]\w*", "\n".join(lines)))
    found = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name("self" | "cls")):
                found.add(name)
    return found


def touched(text: str, own: set[str]) -> list[str]:
    """The underscore names that a source touches and its folder does not define."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names if f"{node.module}.{alias.name}" not in own]
        elif isinstance(node, ast.Attribute):
            names = [] if node.attr in own | HOOKS | OF_OTHERS else [node.attr]
        else:
            continue
        found += [f"{name}, line {node.lineno}" for name in names if is_private(name)]
    return found


@pytest.mark.parametrize("folder", ["bridge", "service", "cli"])
def test_no_underscore_name_of_another_folder_is_touched(folder):
    sources = (".py", ".pyx", ".pxd")
    paths = [path for path in (PACKAGE / folder).rglob("*") if path.suffix in sources]
    own = {f"gpuring.{folder}.{path.stem}" for path in paths}
    for path in paths:
        own |= defined(path.read_text(), path.suffix)
    wrong = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in paths
        if path.suffix == ".py"
        for name in touched(path.read_text(), own)
    }
    assert len(paths) > 10
    assert not wrong


def test_a_name_of_another_folder_is_found():
    own = defined("class _A:\n    _b: int\n    def _c(self):\n        self._d = 1\n")
    own |= defined("    cdef public object _e\n    def _f(self):\n        x._g", ".pyx")
    assert own == {"_A", "_b", "_c", "_d", "_e", "_f"} | {"_A", "_b"}
    assert touched("x._b; x._f; super()._finish()", own) == []
    assert touched("ring._header\nself._peer", own) == ["_header, line 1", "_peer, line 2"]
    assert touched("from a import _b", {"a._b"}) == []
    assert touched("from a import _b, c", own) == ["_b, line 1"]
