"""Compiled modules have their docstrings in .pyx files, and their types in the .pyi files beside
these.  Griffe reads the types.  Here each object in them gets the docstring that `help()` shows.
Permission bits are shown as 0o600, as by `help()`, and not as `Octal(384)`.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

DERIVED = {f"gpuring.service.{name}" for name in ("call", "client", "pending")}
"""Modules of classes that derive from compiled ones and say more exactly what these return."""


class CoreDocstrings(griffe.Extension):
    """An extension of mkdocstrings' python handler."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        if pkg.path == "gpuring":
            _look_into(pkg)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for each in func.parameters:
            if octal := re.fullmatch(r"Octal\((\d+)\)", str(each.default)):
                each.default = oct(int(octal[1]))


def _look_into(module: griffe.Module) -> None:
    is_stub = not isinstance(module.filepath, list) and module.filepath.suffix == ".pyi"
    if is_stub or module.path in DERIVED:
        _document(module, importlib.import_module(module.path))
    for each in module.members.values():
        if isinstance(each, griffe.Module):  # an alias would be resolved, and listed as its target
            _look_into(each)


def _document(stub: Any, compiled: Any) -> None:
    for name, member in stub.members.items():
        found = getattr(compiled, name, None)
        if member.is_alias or not any(kind(found) for kind in _DOCUMENTED):
            continue
        if found.__doc__ and found.__doc__ != object.__init__.__doc__:
            member.docstring = griffe.Docstring(inspect.cleandoc(found.__doc__), parent=member)
        if member.is_class:
            _document(member, found)


_DOCUMENTED = (inspect.isclass, inspect.isroutine, inspect.isdatadescriptor)
