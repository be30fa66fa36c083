"""A name with a leading underscore is its folder's: no other folder imports it or reaches for it.

What services and bridges need of rings beyond what users may is in ring/inner.py, and for compiled
code in ring/inner.pxd.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from tests import ROOT

OURS = re.compile(r"_[^\W_]\w*")


def names(path: str, text: str) -> tuple[set[str], set[str]]:
    """The names with one underscore that a source defines, and those that it uses behind a dot or
    in an import."""
    made, said = {path.rpartition("/")[2].partition(".")[0]}, set[str]()
    if not path.endswith((".py", ".pyi")):
        made.update(*(re.findall(r"\w+", line) for line in re.findall(r"\bc?p?def .*", text)))
        said.update(re.findall(r"\.(\w+)", text))
        text = ""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            made.add(node.id)
        elif isinstance(node, ast.Attribute):
            ours = isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
            (made if ours else said).add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            said |= {*(node.module or "").split("."), *(each.name for each in node.names)}
    return {each for each in made if OURS.fullmatch(each)}, {*filter(OURS.fullmatch, said)}


def reached() -> list[str]:
    made, said = defaultdict[str, set[str]](set), list[tuple[str, str, str]]()
    for path in sorted((ROOT / "gpuring").rglob("*.p*")):
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".pxi"):
            where = path.relative_to(ROOT / "gpuring").as_posix()
            folder = where.partition("/")[0]
            ours, theirs = names(where, path.read_text())
            made[folder] |= ours
            said += [(where, folder, name) for name in sorted(theirs)]
    known = set().union(*made.values())
    return [f"{at} {name}" for at, folder, name in said if name in known - made[folder]]


def test_nobody_else_reaches_for_a_folders_own_names():
    assert reached() == [], "another folder's own names; give them a public one"


def test_what_is_defined_and_what_is_said():
    text = "from a._b import _c\nclass _D:\n    def _e(self, f):\n        self._g = f._h\n"
    assert names("x/_y.py", text) == ({"_y", "_D", "_e", "_g"}, {"_b", "_c", "_h"})
    text = "cdef public int _a\ncdef int _b(x):\n    return x._c + d.__e__"
    assert names("x/y.pyx", text) == ({"_a", "_b"}, {"_c"})
