"""The mark of a test that holds a promise of the pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def promise(_page: str, *_quotations: str) -> Callable[[F], F]:
    """The test below fails if what it quotes from the page is untrue.

    A quotation is one or more whole sentences, or cells of one row with the bars between them.
    tests/docs/test_promises.py reads it in the source.
    """
    return lambda test: test
