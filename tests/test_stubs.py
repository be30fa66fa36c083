"""Stubs of a wheel have the docstrings that `help()` shows, and the types of the checkout."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from tests import ROOT
from tests.helpers.commands import python

NOT_OURS = ("Turn",)
"""A kind of lock, with a docstring of Python."""


def pairs(node: Any, compiled: Any) -> Iterator[tuple[Any, Any]]:
    """Each class and function of a stub, with the object that it describes."""
    for each in node.body:
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = getattr(compiled, each.name, None)
            yield each, found
            if isinstance(each, ast.ClassDef):
                yield from pairs(each, found)


def types_alone(tree: ast.Module) -> str:
    """A stub without its docstrings."""
    for node, _ in pairs(tree, None):
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Expr(ast.Constant(...))]
    return ast.unparse(tree)


def test_stubs_of_a_wheel_have_docstrings(tmp_path):
    done = python(ROOT / "cmake/stubs.py", ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    made = [path.relative_to(tmp_path) for path in tmp_path.glob("**/*.pyi")]
    assert made
    for path in made:
        tree, source = (ast.parse((at / path).read_text()) for at in (tmp_path, ROOT))
        compiled = importlib.import_module(".".join(path.with_suffix("").parts))
        for node, described in pairs(tree, compiled):
            own = getattr(described, "__doc__", None) if node.name not in NOT_OURS else None
            if own and not node.name.startswith("__"):
                assert ast.get_docstring(node) == inspect.cleandoc(own), f"{path}: {node.name}"
        assert types_alone(tree) == types_alone(source)
