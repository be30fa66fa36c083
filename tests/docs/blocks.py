"""The programs on the pages, and the tests that run them.  `test_blocks.py` checks that each
program is run, and that commands can be typed.  The tests of the commands check what they print.

    @block("waiting.md", 0)
    def test_…(code): …

The fixture `code` is the text of that block, with its rings named as those of the test.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuring
from tests import ROOT

BY_PAGE = {
    "README.md": "test_front_page.py",
    "docs/c.md": "test_c_page.py",
    "docs/containers.md": "test_containers_page.py",
    "docs/gstreamer.md": "../gstreamer/test_page.py",
    "docs/recipes.md": "test_recipes.py",
    "docs/recording.md": "test_recording_page.py",
    "docs/supervise.md": "test_supervise_page.py",
}
"""Pages all of whose programs one file of tests runs, beside this folder."""
BY_PLACE = {("docs/guide.md", number): "test_front_page.py" for number in (0, 1)}
BY_PLACE["docs/guide.md", 9] = "test_examples.py"  # examples/one_script.py
"""Single blocks that other tests run."""
PROGRAMS = {"python", "c", "cpp"}

_TAKEN: set[tuple[str, int]] = set()


def of(page: str, *languages: str) -> list[str]:
    """The blocks of a page in these languages."""
    found = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    return [code for language, code in found if language in languages]


def pasted(page: str) -> dict[str, str]:
    """The page's programs whose first line names a file, by that file's name."""
    blocks = re.findall(
        r"^```python\n(# (\S+\.py)\b.*?)^```$", (ROOT / page).read_text(), re.M | re.S
    )
    return {Path(name).name: code for code, name in blocks}


def block(page: str, *numbers: int) -> Callable[[Any], Any]:
    """One of the page's blocks in Python, counted from 0."""
    path = f"docs/{page}"
    _TAKEN.update((path, number) for number in numbers)
    texts = of(path, "python")
    code = "\n".join(texts[number] for number in numbers)
    return pytest.mark.parametrize("page_code", [code], ids=[f"{page}-{numbers[0]}"])


def left_out() -> list[str]:
    """The programs of the pages that no test runs."""
    for file in Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f"{__package__}.{file.stem}")  # the module takes its blocks
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [
        f"{path} {number}"
        for path in sorted(str(page.relative_to(ROOT)) for page in pages)
        if path not in BY_PAGE
        for number, _ in enumerate(of(path, *PROGRAMS))
        if (path, number) not in BY_PLACE and (path, number) not in _TAKEN
    ]


def run(code: str, **names: Any) -> dict[str, Any]:
    """Runs a block.  Returns its names afterwards.  A block with `await` runs as the body of a
    coroutine."""
    namespace = {"gpuring": gpuring, **names}
    compiled = compile(code, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(compiled, namespace))
    else:
        exec(compiled, namespace)
    return namespace
