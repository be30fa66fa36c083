"""The verbs are compiled: their docstrings stand in slots.pyx, verbs.pyx, _calls.pyx, _sender.pyx
and _engine.pyx, their types in the .pyi files beside these, or in the modules of the classes that
derive from theirs, which know what they return.

Griffe reads these.  Here each object in them gets the docstring that `help()` shows.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe

from gpuring.native import slots
from gpuring.ring import consumer, producer
from gpuring.service import call, client, pending, server


class CoreDocstrings(griffe.Extension):
    """An extension of mkdocstrings' python handler."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        if pkg.path == "gpuring":
            _document(pkg["native.slots"], slots)
            _document(pkg["ring.producer"], producer)
            _document(pkg["ring.consumer"], consumer)
            _document(pkg["service.call"], call)
            _document(pkg["service.client"], client)
            _document(pkg["service.pending"], pending)
            _document(pkg["service.server"], server)


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
