"""The table of metrics in docs/monitoring.md, from what gpuring/cli/metrics/collector.py gives.

`python -m tests.docs.metrics` writes it into the page.
"""

from __future__ import annotations

import re

from tests import ROOT

PAGE = ROOT / "docs" / "monitoring.md"

_HEAD = """\
| metric | meaning | type | unit | labels |
|---|---|---|---|---|
"""


def table() -> str:
    """The table as the page has it."""
    from gpuring.cli.metrics.collector import RingCollector
    from gpuring.cli.metrics.otlp import unit

    rows = []
    for each in RingCollector(1).collect():
        name = f"{each.name}_total" if each.type == "counter" else each.name
        labels = ", ".join(f"`{label}`" for label in each._labelnames)
        meaning = each.documentation.replace("|", "&#124;")
        rows.append(f"| `{name}` | {meaning} | {each.type} | {unit(each.name)} | {labels} |\n")
    return _HEAD + "".join(rows)


def page() -> str:
    """docs/monitoring.md with the table as it should be."""
    before, head, behind = PAGE.read_text().partition(_HEAD)
    assert head, f"{PAGE} has no such table"
    return before + table() + re.sub(r"\A(\|.*\n)*", "", behind)


if __name__ == "__main__":
    PAGE.write_text(page())
