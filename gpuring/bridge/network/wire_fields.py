"""Fields of a JSON object that has come from the network."""

from __future__ import annotations

import json
from typing import Any

from gpuring.printable import printable

MAX_NAME = 128
MAX_TEXT = 2000


class Fields:
    """Each is checked for its type and its range when it is asked for.  Raises ValueError, and
    KeyError for one that is not there."""

    def __init__(self, body: bytes, n: int | None = None) -> None:
        """`n`: how many there must be."""
        try:
            said = json.loads(body)
        except ValueError as error:
            raise ValueError(f"no JSON: {error}") from None
        if not isinstance(said, dict):
            raise ValueError("no JSON object")
        self._said: dict[str, Any] = said
        if n is not None:
            self.are(n)

    def are(self, n: int) -> None:
        """There are so many, and no others that nobody knows."""
        if len(self._said) != n:
            raise ValueError("fields that nobody knows")

    def __getitem__(self, name: str) -> Any:
        return self._said[name]

    def text(self, name: str, most: int = MAX_TEXT) -> str:
        value = self[name]
        if not isinstance(value, str) or len(value) > most:
            raise ValueError(f"{name} is a text of at most {most} characters")
        value.encode()  # raises for half of a surrogate pair
        return value

    def words(self, name: str, most: int = MAX_TEXT) -> str:
        """A text for people, as it may be logged and shown."""
        return printable(self.text(name, most))[:most]

    def name(self, name: str, most: int = MAX_NAME) -> str:
        value = self.text(name, most)
        if not value or not value.isprintable():
            raise ValueError(f"{name} is a name")
        return value

    def epoch(self, none: str | None = None) -> str:
        """An epoch, or `none`, which stands for no epoch."""
        if none is not None and self["epoch"] == none:
            return ""
        return self.digits("epoch", 32)

    def digits(self, name: str, n: int) -> str:
        value = self.text(name, n)
        if len(value) != n or not set(value) <= set("0123456789abcdef"):
            raise ValueError(f"{name} has {n} hexadecimal digits")
        return value

    def integer(self, name: str, least: int, most: int) -> int:
        value = self[name]
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{name} is a whole number from {least} to {most}")
        return value

    def boolean(self, name: str) -> bool:
        value = self[name]
        if not isinstance(value, bool):
            raise ValueError(f"{name} is true or false")
        return value
