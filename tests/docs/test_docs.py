"""The links of the pages lead somewhere, and the reference has everything that is public."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import zlib
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any
from xml.etree import ElementTree

import pytest

import gpuring
from gpuring import bridge, recording
from gpuring.cli import COMMANDS
from gpuring.registry import stats
from gpuring.ring.batch import ReadBatch, WriteBatch
from gpuring.ring.exported import SlotField
from gpuring.service import Batch, ClientMetrics, Counts, Health, Histogram, Metrics
from gpuring.service.call import AnswerSlot
from gpuring.service.pending import Answer, RequestSlot
from gpuring.slot_layout import Field, Spec
from tests import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PUBLIC = {f"gpuring.{name}": getattr(gpuring, name) for name in gpuring.__all__}
PUBLIC |= {f"gpuring.bridge.{name}": getattr(bridge, name) for name in bridge.__all__}
PUBLIC |= {f"gpuring.recording.{name}": getattr(recording, name) for name in recording.__all__}
HEADS = [
    path
    for path in sorted((ROOT / "gpuring").rglob("__init__.py"))
    if re.search(r"^ *\w+\.py  ", path.read_text(), re.M)
]
HANDED_OUT = (
    *(Answer, AnswerSlot, Batch, Counts, Health, RequestSlot),
    *(ClientMetrics, Histogram, Metrics),
    *(kind for kind in vars(stats).values() if getattr(kind, "__module__", "") == stats.__name__),
    *(Field, ReadBatch, SlotField, Spec, WriteBatch),
)
"""What public calls return, beside what is exported."""
OF_C = (MethodDescriptorType, WrapperDescriptorType)
"""Special methods of compiled classes, which have no signature."""


# ---- the pages as files --------------------------------------------------------------------------


def without_code(text: str) -> str:
    return re.sub(r"^( *)(```|~~~).*?^\1\2", "", text, flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The anchors of a page: its headings, and the objects that mkdocstrings puts on it."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.M)
    slugs = {re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings}
    objects = set(re.findall(r"^::: (\S+)", text, re.M))
    members = {f"{each}.{name}" for each in objects for name in dir(PUBLIC.get(each))}
    return slugs | objects | members


def test_what_the_reference_lists_can_be_had_by_its_name():
    """The process has imported nothing else."""
    pytest.importorskip("prometheus_client", reason="gpuring.service.prometheus needs it")
    listed = [
        name
        for page in sorted((ROOT / "docs/api").glob("*.md"))
        for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)
    ]
    assert "gpuring.bridge.Import" in listed
    code = "import pkgutil, sys; [pkgutil.resolve_name(each) for each in sys.argv[1:]]"
    subprocess.run([sys.executable, "-c", code, *listed], check=True, timeout=60)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} is not there"
        assert target.is_relative_to(ROOT), f"{link} is not in the repository"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"
        if target.suffix == ".svg":
            ElementTree.parse(target)


def test_every_file_that_the_architecture_names_is_there():
    """A path begins in gpuring/ or in the repository.  A module may be named without its suffix."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    page = re.sub(r"\]\([^)]*\)", "]", page)
    named = re.findall(r"(?<![\w/.-])[\w/]+\.(?:py|pyx|pxd|c|h|md|toml)\b", page)
    named += re.findall(r"(?<![\w/.-])(?:\w+/)+(?![\w*])", page)
    named += re.findall(r"(?<![\w/.-])ring/\w+(?![\w/.])", page)
    assert len(set(named)) > 60
    for path in named:
        roots = (ROOT, ROOT / "gpuring")
        assert any((root / path).exists() or [*root.glob(f"{path}.py*")] for root in roots), path


@pytest.mark.parametrize("head", HEADS, ids=lambda head: str(head.parent.relative_to(ROOT)))
def test_the_head_of_a_package_that_lists_its_files_lists_all_of_them(head):
    files = {path.name for path in head.parent.glob("*.py") if not path.name.startswith("__")}
    assert not {name for name in files if name not in head.read_text().split('"""')[1]}


def test_a_decision_that_supersedes_another_one_and_that_one_name_each_other():
    """Each of the two paragraphs links to the other page."""
    by: set[tuple[str, str]] = set()
    over: set[tuple[str, str]] = set()
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        for paragraph in page.read_text().split("\n\n"):
            links = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", paragraph)
            if re.match(r"\*\*Superseded\b", paragraph):
                by |= {(page.name, link) for link in links}
            elif re.search(r"\bsupersedes\b", paragraph):
                over |= {(link, page.name) for link in links}
    assert len(by) > 5
    assert by == over


def test_every_file_of_tests_that_a_page_names_is_there():
    wrong = {
        f"{page.name}: {path}"
        for page in PAGES
        for path in re.findall(r"\btests/[\w./*-]*[\w*]", page.read_text())
        if not any(ROOT.glob(path))
    }
    assert not wrong


def test_every_page_that_the_code_names_has_the_heading_that_it_names():
    """Messages and comments send people there, as in "docs/streams.md, CUDA graphs"."""
    named = [
        (path.name, *page)
        for path in (ROOT / "gpuring").rglob("*.*")
        if path.suffix in {".py", ".pyx", ".c", ".h"}
        for page in re.findall(r'(docs/\w+\.md)(?:, "?([A-Z][A-Za-z ]+))?', path.read_text())
    ]
    assert len(named) > 10
    for path, page, heading in named:
        assert (ROOT / page).is_file(), f"{path} names {page}"
        slug = heading.lower().replace(" ", "-")
        assert not heading or slug in anchors(ROOT / page), f"{path} names {page}, {heading}"


def test_every_command_is_named():
    table = (ROOT / "docs" / "tools.md").read_text().split("**Extras.**")[0]
    assert set(re.findall(r"gpuring ([a-z]+)(?=[,\]])", table)) == set(COMMANDS)


# ---- docstrings ----------------------------------------------------------------------------------


def of_tuple(kind: Any) -> tuple[str, ...]:
    """The fields of a NamedTuple."""
    return getattr(kind, "_fields", ()) if issubclass(kind, tuple) else ()


def members(kind: Any) -> dict[str, Any]:
    """The public members that the package defines, and special ones that are used as `slot[name]`
    or `for slot in …`."""
    found = {}
    for name in dir(kind):
        owner = next(each for each in kind.__mro__ if name in vars(each))
        ours = owner.__module__.startswith("gpuring")
        value = vars(owner).get(name)
        spoken = not name.startswith("_") or name in ("__getitem__", "__iter__", "__aiter__")
        spoken = spoken and name not in of_tuple(kind)
        if ours and spoken and (callable(value) or inspect.isdatadescriptor(value)):
            found[name] = value
    return found


def documented() -> list[Any]:
    """(name, object) of everything that needs a docstring."""
    all_of_it = []
    for kind in (*PUBLIC.values(), *HANDED_OUT):
        all_of_it.append(pytest.param(kind, id=kind.__name__))
        if inspect.isclass(kind):
            for name, value in members(kind).items():
                all_of_it.append(pytest.param(value, id=f"{kind.__name__}.{name}"))
    return all_of_it


@pytest.mark.parametrize("thing", documented())
def test_everything_public_has_a_docstring_of_substance(thing):
    """A docstring has sentences.  It says what each argument is, or where that can be read."""
    text = inspect.cleandoc(vars(thing)["__doc__"] if inspect.isclass(thing) else thing.__doc__)
    assert len(text.split()) >= 4, text
    assert text[-1] in ".…:)", text
    if inspect.isroutine(thing) and not isinstance(thing, OF_C):
        elsewhere = re.search(r"`\w+` for asyncio| as (for )?`?[\w.]+`? (does|do)\b", text)
        for argument in inspect.signature(thing).parameters:
            known = (
                argument == "self"
                or argument.startswith("_")
                or re.search(rf"\b{argument}\b", text)
            )
            assert known or elsewhere, f"nothing on {argument}="


# ---- the site ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as ./check builds it."""
    for module in ("mkdocs", "material", "mkdocstrings_handlers"):
        if find_spec(module) is None:
            pytest.skip(f"{module}: gpuring[docs] is not installed")
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert run.returncode == 0, run.stderr
    return made


@pytest.mark.slow
def test_the_reference_has_every_public_name(site):
    _, listed = (site / "objects.inv").read_bytes().split(b"zlib.\n", 1)
    there = {line.split()[0] for line in zlib.decompress(listed).decode().splitlines()}
    for name, value in PUBLIC.items():
        assert name in there
        if inspect.isclass(value):
            named = {*members(value), *of_tuple(value)}
            assert {f"{name}.{member}" for member in named} - there == set()
    for kind in HANDED_OUT:
        name = min(each for each in there if each.endswith(f".{kind.__name__}"))
        attributes = {each.name for each in fields(kind)} if is_dataclass(kind) else set()
        assert {f"{name}.{member}" for member in attributes | set(members(kind))} - there == set()


@pytest.mark.slow
def test_compiled_verbs_are_shown_with_signature_and_docstring(site):
    html = (site / "api" / "producers.html").read_text()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html))
    assert "claim( timeout: float | None = None, *, stream: Any = None" in text
    assert "no claim behind." in text


@pytest.mark.slow
def test_the_site_fetches_nothing(site):
    """No fonts, scripts, styles or pictures from elsewhere."""
    for page in site.rglob("*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text()):
            assert not re.search(r"(?:src|href)=\"?(?:https?:)?//", tag), f"{page}: {tag}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text()), sheet


@pytest.mark.slow
def test_lists_and_tables_are_shown_as_such(site):
    """The site's Markdown needs an empty line before them."""
    for page in site.rglob("*.html"):
        for paragraph in re.findall(r"<p>(.*?)</p>", page.read_text(), re.S):
            assert not re.search(r"^\s*[*|] ", paragraph, re.M), f"{page.name}: {paragraph}"
