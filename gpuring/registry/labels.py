"""What a peer is called: the label that its program gave it, else the name of the program."""

from __future__ import annotations

import sys
from pathlib import PurePath

from gpuring import native


def encode(label: str | None) -> bytes:
    """The bytes of a label.  None is the name of the program.  Raises TypeError, ValueError."""
    if label is None:
        return _program().encode(errors="replace")[: native.MAX_LABEL_NBYTES]
    if not isinstance(label, str):
        raise TypeError(f"label must be a str or None, not {type(label).__name__}")
    encoded = label.encode(errors="surrogatepass")  # which is no UTF-8, and refused
    native.check_label(encoded)
    return encoded


def _program() -> str:
    """As in `ps`: the script, or the package that `python -m` runs."""
    path = PurePath((getattr(sys, "argv", None) or [""])[0])
    if path.name == "__main__.py":
        return path.parent.name
    return path.name if path.name not in ("", "-c", "-m", "-") else "python"
