"""The page "Who holds what": the sentences of the pages that promise something, and their tests."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[2]))  # `python -m mkdocs` has it, `mkdocs` has not

from tests.docs.promises import PAGES, held, promised, quotations

_LINK, _TEXT = re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"

HEAD = """# Who holds what

A test quotes the sentences that it holds, and fails if one of them is untrue. Where no test can
hold a sentence, this page says why: it *introduces* what follows, *points* to another page,
*defines* a word, *advises* the reader, or says what the *platform* does (Linux, CUDA and its
driver) or what *releases* will keep to. What was *measured* names a file of `bench/results`.
"""


def on_files(files: Files, config: Any) -> Files:
    page = "\n".join([HEAD, *_lines()])
    files.append(File.generated(config, "promises.md", content=page))
    return files


def _lines() -> Iterator[str]:
    everything = list(quotations())
    for page in PAGES:
        promises = promised(page)
        by = held(promises, (each for each in everything if each.page == page)).by
        heading = ""
        for sentence in promises:
            if sentence.heading != heading:
                heading = sentence.heading
                yield f"\n## {page}: {heading}\n"
            yield f"* {_LINK.sub(_TEXT, sentence.text).strip('| ')}"
            yield from (f"    * {_shown(each)}" for each in by[sentence.text])


def _shown(by: str) -> str:
    return f"`{by.removeprefix('tests/')}`" if "::" in by else f"*{by}*"
