"""The verbs are compiled: their types stand in gpuring/_core.pyi, their docstrings in _core.pyx.

Griffe reads the stub.  Here each object in it gets the docstring that `help()` shows.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe

from gpuring import _core


class CoreDocstrings(griffe.Extension):
    """An extension of mkdocstrings' python handler."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        if pkg.path == "gpuring":
            _document(pkg["_core"], _core)


def _document(stub: Any, compiled: Any) -> None:
    for name, member in stub.members.items():
        found = getattr(compiled, name, None)
        if member.is_alias or not any(kind(found) for kind in _DOCUMENTED):
            continue
        if found.__doc__:
            member.docstring = griffe.Docstring(inspect.cleandoc(found.__doc__), parent=member)
        if member.is_class:
            _document(member, found)


_DOCUMENTED = (inspect.isclass, inspect.isroutine, inspect.isdatadescriptor)
