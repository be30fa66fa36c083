"""Who searches wants to use gpuring first, and to know why it is so afterwards."""

from __future__ import annotations

from typing import Any

REASONS = ("decisions/", "holes.md", "promises.md", "tree/")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    if page.file.src_uri.startswith(REASONS):
        page.meta.setdefault("search", {"boost": 0.3})
