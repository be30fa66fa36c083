"""What a command says when it cannot do its work: one line, with the next step in it."""

from __future__ import annotations

import importlib.util

PACKAGES = {"rich": "rich", "prometheus_client": "prometheus_client", "PIL": "Pillow"}


class CommandError(Exception):
    """A command cannot do what it was asked for; the message is for the terminal."""


def need(*modules: str) -> None:
    """Raises CommandError unless all of these modules, which an extra brings, are installed."""
    missing = [PACKAGES[module] for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise CommandError(f"{', '.join(missing)} not installed: pip install 'gpuring[tools]'")
