"""Modules import downwards only: nothing that a module imports imports that module again.

Every import counts, also one inside a function or under TYPE_CHECKING: a module that has to know
the types of another one knows that module.
"""

from __future__ import annotations

import ast
from pathlib import Path

import gpuring

PACKAGE = Path(gpuring.__file__).parent


def sources() -> dict[str, Path]:
    """Every module by its name; the compiled one by its types."""
    found = {}
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]:
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(text: str, modules: set[str], package: str = "") -> set[str]:
    """Those of `modules` that a source in `package` names in any of its imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, (above, node.module)))
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                found.add(inner if inner in modules else source)
    return found & modules


def imports() -> dict[str, set[str]]:
    """What each module imports."""
    graph, paths = {}, sources()
    for name, path in paths.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        graph[name] = imported(path.read_text(), set(paths), package)
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A way from some module back to itself; empty if there is none."""
    done: set[str] = set()

    def walk(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        for each in sorted(graph[module]):
            found = walk(each, [*way, module])
            if found:
                return found
        done.add(module)
        return []

    return next(filter(None, (walk(module, []) for module in sorted(graph))), [])


def test_no_module_imports_itself_again():
    graph = imports()
    assert len(graph["gpuring.ring.ring"]) > 5
    assert "gpuring.cli.doctor.gpu" in graph["gpuring.cli.doctor"]
    assert not (way := circle(graph)), f"these import each other: {' -> '.join(way)}"


def test_a_circle_is_found_and_every_import_counts():
    modules = {"p", "p.a", "p.b", "p.c"}
    assert imported("from p import a, name", modules) == {"p.a", "p"}
    assert imported("def f():\n    import p.b", modules) == {"p.b"}
    assert imported("if TYPE_CHECKING:\n    from p.c import T", modules) == {"p.c"}
    assert imported("import os, numpy", modules) == set()
    assert imported("from . import a\nfrom .b import name", modules, "p") == {"p.a", "p.b"}
    assert imported("from .. import b", modules, "p.a") == {"p.b"}
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"a"}}) == ["a", "a"]
