"""`python -m bench.page` takes the figures of a page from bench/results.  `bench.whole` writes
results."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

import bench
from gpuring.cli.measure.figures import Figure
from gpuring.cli.measure.stored import Run
from tests.helpers.figures import spread

page = pytest.importorskip("bench.page", reason="templates need Jinja2")
whole = pytest.importorskip("bench.whole")


def trip(us, program="gpuring", n=2000, **setting):
    setting = {"sync": "host", "kernel": True, "slots": 8, **setting}
    return Figure("latency", "round trip", program, "µs", setting, spread(us, n))


def results(*figures):
    return page.Results(Run({}, list(figures), 1))


MADE = {path.name: (path, made) for path, made in page.pages()}


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_what_its_templates_make_of_the_results(name):
    path, made = MADE[name]
    assert path.read_text() == made, "python -m bench.page writes it anew"


def test_every_template_is_of_a_page_or_of_a_part_of_one():
    parts = {
        name for path, _ in MADE.values() for _, name, _ in page.PART.findall(path.read_text())
    }
    assert parts == {path.stem for path in (page.TEMPLATES / "parts").glob("*.md")}
    assert {path.name for path in page.TEMPLATES.glob("*.md")} <= {*MADE}


def test_other_results_make_another_page(tmp_path):
    (tmp_path / "page.md").write_text('Takes {{ bench("round trip", sync="host") }}.\n')
    for us, said in ((7, "7 µs"), (1234, "1.23 ms")):
        results(trip(us)).run.save(tmp_path / "bench.json")
        assert page.text("page.md", tmp_path, tmp_path).endswith(f"Takes {said}.\n")


def test_lines_of_text_are_broken_anew_and_others_are_not():
    words, row = " ".join(["word"] * 30), f"| {'cell ' * 30}|"
    made = page.filled(
        f"# A page\n\n{words}\n{words}\n\n* {words}\n* two\n  lines\n\n{row}\n```\n{words}\n```\n"
    )
    lines = made.splitlines()
    assert lines[:2] == ["# A page", ""]
    assert [line for line in lines if len(line) > 100] == [row, words]
    assert lines[-6:] == ["* two lines", "", row, "```", words, "```"]
    assert made.split() == page.filled(made).split()
    assert page.filled(made) == made


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    (tmp_path / "page.md").write_text('{{ bench("round trip") }}')
    with pytest.raises(page.jinja2.UndefinedError, match="bench"):
        page.text("page.md", tmp_path, tmp_path)


def test_what_is_left_out_is_as_usual_and_what_is_said_has_to_be_there():
    found = results(trip(7), trip(70, slots=64), trip(700, kernel=False))
    assert found("round trip", sync="host").value == 7
    assert found("round trip", slots=64).value == 70
    assert found("round trip", kernel=False).value == 700
    said = r"0 figures are round trip gpuring mps=True\n.* slots=8: 7 µs .*\n.* slots=64: "
    with pytest.raises(LookupError, match=said):
        found("round trip", mps=True)


def test_a_figure_is_the_only_one_that_is_meant():
    with pytest.raises(LookupError, match="2 figures are round trip"):
        results(trip(7, sync="timeline"), trip(8, sync="event"))("round trip")


def test_a_percentile_needs_samples_beyond_it():
    assert not results(trip(7, n=500)).has("round trip", p=99)
    assert results(trip(7, n=500)).has("round trip")
    with pytest.raises(LookupError, match="0 figures"):
        results(trip(7, n=500))("round trip", p=99)


def test_ratios_are_of_figures_with_one_setting():
    ours = [trip(10, mps=False), trip(30, mps=True)]
    found = results(*ours, trip(5, "floor", mps=False), trip(10, "floor", mps=True))
    ratios = found.against("floor", "round trip", "mps")
    assert [each.value for each in ratios] == [2, 3]
    assert page.span(ratios) == "2 to 3"
    assert page.span(found.each("round trip", "mps")) == "10 µs to 30 µs"


# ---- results ------------------------------------------------------------------------------------


def test_every_file_of_results_is_listed_with_its_command():
    listed = re.findall(r"^\| ([^|]*) \|", (page.RESULTS / "README.md").read_text(), re.M)
    named = {name for cell in listed for name in re.findall(r"[\w-]+\.json", cell)}
    assert named == {path.name for path in page.RESULTS.glob("*.json")}


def test_every_room_is_a_program_and_has_its_row():
    rows = (page.RESULTS / "README.md").read_text()
    for name, command in whole.BENCHMARKS.items():
        assert find_spec(command[0])
        assert re.search(rf"(^ +(\w+, )*|-m ){name}\b", bench.__doc__, re.M)
        assert f"| {name}.json | `python -m {' '.join(command)}`" in rows


@pytest.mark.slow
def test_a_room_that_fails_keeps_its_results(tmp_path):
    measured = ("bench.services", "--device", "host", "--forms", "one", "--rounds", "1")
    benchmarks = {"good": (*measured, "--seconds", "0.05"), "gone": ("bench.no_such_module",)}
    for name in benchmarks:
        (tmp_path / f"{name}.json").write_text("old")
    assert list(whole.run(benchmarks, tmp_path, benchmarks)) == ["gone"]
    assert (tmp_path / "gone.json").read_text() == "old"
    found = page.Results(page.stored.load(tmp_path / "good.json"))
    assert found("round trip", "service", memory="host", form="one").value > 0
