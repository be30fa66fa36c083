"""Pages may link to what is in the repository and not in docs/, such as ../examples/service.py.
README.md is the front page.

Read as files such links simply work.  In the site these files stand under tree/, and the links lead
there.  A link to what is not in the repository is left as it is, and mkdocs complains about it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

FRONT = "README.md"
PROJECT = (FRONT, "CONTRIBUTING.md", "CHANGELOG.md")
"""Pages that live beside docs/."""

LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".cu": "c++", ".txt": "text"}
"""What is shown as a page, by suffix; other files are given as they are."""

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)[^)\s#]+(?=[)#])")
"""The target of a relative link, without its anchor."""


def on_files(files: Files, config: Any) -> Files:
    root = Path(config.config_file_path).parent
    texts = {f"docs/{page.src_uri}": page.content_string for page in files.documentation_pages()}
    texts |= {path: (root / path).read_text() for path in PROJECT}
    linked = set(PROJECT)
    for source, text in texts.items():
        linked.update(filter(None, (_target(root, source, link) for link in _LINK.findall(text))))
    outside = (path for path in sorted(linked) if not path.startswith("docs/"))
    shown = dict(pair for path in outside for pair in _shown(root, path))
    for uri, content in shown.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    if page.file.generated_by:
        return markdown
    return _lead(Path(config.config_file_path).parent, f"docs/{page.file.src_uri}", markdown)


def _lead(root: Path, source: str, text: str) -> str:
    """The text of `source`, its links leading to where the site has their targets."""
    base = posixpath.dirname(_uri(root, source)) or "."

    def lead(link: re.Match[str]) -> str:
        target = _target(root, source, link[0])
        return posixpath.relpath(_uri(root, target), base) if target else link[0]

    return _LINK.sub(lead, text)


def _target(root: Path, source: str, link: str) -> str | None:
    """The path in the repository of what a file of it links to; None: there is nothing."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return path if not path.startswith("..") and (root / path).exists() else None


def _uri(root: Path, path: str) -> str:
    """Where a path of the repository is among the site's sources."""
    if path == FRONT:
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (root / path).is_dir():
        return f"tree/{path}/index.md"
    return f"tree/{path}.md" if Path(path).suffix in LANGUAGES else f"tree/{path}"


def _shown(root: Path, path: str) -> Iterator[tuple[str, str | bytes]]:
    """What the site gets for a file or a directory: source as a page, data as it is."""
    if path.endswith(".md"):
        yield _uri(root, path), _lead(root, path, (root / path).read_text())
        return
    directory = (root / path).is_dir()
    page = f"---\nsearch:\n  exclude: true\n---\n# {path}\n"
    for file in sorted((root / path).iterdir()) if directory else [root / path]:
        if language := LANGUAGES.get(file.suffix):
            heading = f"\n## {file.name}\n" if directory else ""
            page += f"{heading}\n~~~~~~~~ {language}\n{file.read_text()}~~~~~~~~\n"
        elif file.is_file():
            page += f"\n* [{file.name}]({file.name})"
            yield f"tree/{file.relative_to(root).as_posix()}", file.read_bytes()
    if directory or Path(path).suffix in LANGUAGES:
        yield _uri(root, path), page
