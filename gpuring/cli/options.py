"""Values on a command line: what they mean, and why they are refused."""

from __future__ import annotations

import argparse
import math
import pwd
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from gpuring import arguments, native

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
Refused = argparse.ArgumentTypeError


class Parser(argparse.ArgumentParser):
    """It says which command or option a mistyped one may mean.

    An option that has one value is refused a second time.  argparse would forget the first.
    """

    beside: Mapping[str, argparse.ArgumentParser] = {}
    """The parsers of the commands among which an option of this one may be looked for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for action in (None, "store"):
            self.register("action", action, _Once)

    def parse_known_args(self, *args: Any, **more: Any) -> Any:
        """Refuses what it does not know.  The parser of all commands would not know its options."""
        given, rest = super().parse_known_args(*args, **more)
        if rest:
            told = [word + self._of(word.split("=")[0]) for word in rest]
            self.error(f"unrecognized arguments: {' '.join(told)}")
        return given, rest

    def _of(self, word: str) -> str:
        """What a word may mean that is not known here."""
        has = [name for name, each in self.beside.items() if word in each._option_string_actions]
        if has:
            return f" (an option of {' and '.join(has)})"
        return _meant(word, self._option_string_actions)

    def _get_values(self, action: argparse.Action, strings: list[str]) -> Any:
        """A `--` behind another one, or behind `=`, is a value.  argparse of old takes it away."""
        if strings != ["--"] or action.nargs is not None:
            return super()._get_values(action, strings)
        value = self._get_value(action, "--")
        self._check_value(action, value)
        return value

    def _check_value(self, action: argparse.Action, value: object) -> None:
        known = action.choices or [value]
        if value not in known and (meant := _meant(str(value), known)):
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}{meant}")
        super()._check_value(action, value)


def _meant(word: str, known: Iterable[str]) -> str:
    names = {each.lstrip("-"): each for each in known if each != word}  # as behind --
    found = get_close_matches(word.lstrip("-"), names, 1)
    return "".join(f" (did you mean {names[each]}?)" for each in found)


class _Once(argparse.Action):
    was_given = False

    def __call__(
        self, parser: object, given: object, values: object, option: str | None = None
    ) -> None:
        if option and self.was_given:
            raise argparse.ArgumentError(self, "is given more than once, but takes one value")
        self.was_given = True
        setattr(given, self.dest, values)


def add_order(parser: argparse.ArgumentParser) -> None:
    """--sync and --gate, as create() has them."""
    parser.add_argument(
        "--sync",
        choices=("auto", "event", "timeline"),
        default="auto",
        help="how GPU streams wait for each other (default: auto)",
    )
    parser.add_argument(
        "--gate",
        choices=("stream", "host"),
        help="what waits for another process's GPU work: CUDA streams, or threads on the host",
    )


def add_owner(
    parser: argparse.ArgumentParser, whose: str = "the other user whose ring it is"
) -> None:
    """--owner, as attach() has it."""
    parser.add_argument(
        "--owner", type=user, metavar="USER", help=f"{whose}; only for one whom you trust"
    )


def positive(text: str) -> float:
    value = _number(text)
    if not 0 < value < 1e9:
        raise Refused(f"must be {'below 1e9' if value >= 1e9 else 'above 0'}, not {text}")
    return value


def seconds(text: str) -> float:
    """A time that may be over at once."""
    try:
        value = arguments.seconds(float(text), "")
    except ValueError:
        value = math.inf
    if value > 1e9:
        raise Refused(f"must be a number of seconds from 0 to 1e9, not {text!r}")
    return value


def nbytes(text: str) -> int:
    """An amount of memory: "64MiB", "500000"."""
    found = re.fullmatch(r"([0-9]+)\s*([kmg]?i?)b?", text.strip().lower())
    value = int(found[1]) * _UNITS.get(found[2], 0) if found else 0
    if value < 1:
        raise Refused(f"must be a number of bytes, such as 64MiB or 500000, not {text!r}")
    return value


def count(text: str) -> int:
    return _at_least(1, text)


def count_or_zero(text: str) -> int:
    return _at_least(0, text)


def port(text: str) -> int:
    """A port to listen on.  0 is any free one."""
    value = _whole(text)
    if not 0 <= value <= 65535:
        raise Refused(f"must be 0 to 65535, not {text}")
    return value


def slots(text: str) -> int:
    value = _whole(text)
    if not 1 <= value <= native.MAX_SLOTS:
        raise Refused(f"a ring has 1 to {native.MAX_SLOTS} slots, not {text}")
    return value


def permissions(text: str) -> int:
    """Permission bits: "0600", "660"."""
    value = int(text, 8) if re.fullmatch("(0o?)?[0-7]{1,3}", text) else -1
    if value < 0:
        raise Refused(f"must be permission bits in octal, such as 0600 or 0660, not {text!r}")
    return value


def device(text: str) -> str:
    """Where a ring may live: "host", "cuda", "cuda:1"."""
    if text not in ("host", "cuda") and not re.fullmatch(r"cuda:[0-9]+", text):
        raise Refused(f"must be host, cuda or cuda:N, not {text!r}")
    return text


def gpu_number(text: str) -> int:
    """A GPU's ordinal: "cuda:1" or "1"."""
    if not (found := re.fullmatch(r"(?:cuda:)?([0-9]+)|cuda", text)):
        raise Refused(f"must be cuda or cuda:N, not {text!r}")
    return int(found[1] or 0)


def user(text: str) -> int:
    """A user's id, from his name or from the id itself."""
    try:
        return int(text) if text.isdecimal() else pwd.getpwnam(text).pw_uid
    except KeyError:
        raise Refused(f"there is no user {text!r} on this host") from None


def _at_least(least: int, text: str) -> int:
    if (value := _whole(text)) < least:
        raise Refused(f"must be at least {least}, not {text}")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refused(f"must be a whole number, not {text!r}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refused(f"must be a number, not {text!r}") from None
