"""What a command says when it cannot do its work: a sentence, with the next step in it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Collection

PACKAGES = {
    "av": "PyAV",
    "PIL": "Pillow",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}
"""What modules are called where they are installed from, if that differs."""
_ARGUMENT = re.compile(
    r"""`(?P<word>[a-z_]+)`|(?<![\w-])(?P<name>[a-z_]+)=(?P<value>True|'[^']*'|"[^"]*"|[\w.:]*)"""
)
_FOR_C = re.compile(r" \(in C [^)]*\)")


class CommandError(Exception):
    """A command cannot do what it was asked for; the message is for the terminal."""


COULD_NOT_LOOK = 3
"""The exit status of a command that answers with 0 or 1, where it does not know."""


class CannotLook(CommandError):
    """A command cannot say whether all is well, because it cannot read what that is about."""


def need(*modules: str, extra: str = "tools") -> None:
    """Raises CommandError unless all of these modules, which an extra brings, are installed."""
    missing = [PACKAGES.get(each, each) for each in modules if not _is_there(each)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        names = ", ".join(missing)
        raise CommandError(f"{names} {verb} not installed: pip install 'gpuring[{extra}]'")


def _is_there(module: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):  # a package above it is missing
        return importlib.util.find_spec(module) is not None
    return False


def message(error: BaseException, options: Collection[str]) -> str:
    """An error, in the words of a command that has these options."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return in_options(str(error), options)


def in_options(text: str, options: Collection[str]) -> str:
    """A message of the library, with options where it speaks of arguments: device='host' becomes
    --device host, and replace=True or `replace` becomes --replace.  Other arguments stay as they
    are.  What the message says for programs in C is left out."""

    def option(found: re.Match[str]) -> str:
        name, value = found["word"] or found["name"], (found["value"] or "").strip("'\"")
        if name not in options:
            return found[0]
        return f"--{name.replace('_', '-')}" + (f" {value}" if value not in ("", "True") else "")

    return _ARGUMENT.sub(option, _FOR_C.sub("", text))
