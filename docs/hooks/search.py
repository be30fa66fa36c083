"""Who searches wants to use gpuring and to know what goes wrong, then to see it in a program or to
look up a name, and to know why it is so afterwards. A word in a title counts a thousand times as
much as one in a text, so the last factors are small.
"""

from __future__ import annotations

from typing import Any

BOOSTS = {
    "failure.md": 2.5,
    "index.md": 2.0,
    "trust.md": 2.0,
    "frames.md": 4.0,
    "examples/": 0.5,
    "api/": 0.1,
    "decisions/": 0.01,
    "holes.md": 0.01,
    "promises.md": 0.01,
    "tree/": 0.01,
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    for path, boost in BOOSTS.items():
        if page.file.src_uri.startswith(path):
            page.meta.setdefault("search", {"boost": boost})
