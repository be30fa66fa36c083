"""The command line itself: help, and arguments that are refused with the reason."""

from __future__ import annotations

import argparse
import errno
import os
import re
import subprocess

import pytest

import gpuring
from gpuring.cli import COMMANDS, EXAMPLES, _parser, main
from gpuring.cli.trouble import CommandError, in_options, message, need
from tests import ROOT
from tests.helpers.commands import COMMAND, DEADLINE_S

KEEP = ("keep", "x", "--slots", 2, "--shape", 3, "--dtype", "u1", "--device", "host")


@pytest.fixture
def parsed(monkeypatch, capsys):
    """The status, output and errors of a command line that the parser ends."""
    monkeypatch.setenv("COLUMNS", "80")

    def parsed(*options):
        with pytest.raises(SystemExit) as ended:
            main([str(option) for option in options])
        return ended.value.code, *capsys.readouterr()

    return parsed


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("metrics", "--port", "99999"), "--port: must be 0 to 65535, not 99999"),
        (("tap", "x", "--out", "y", "--rate", "1e9"), "--rate: must be below 1e9, not 1e9"),
        (("tap", "x", "--out", "y", "--rate", "0"), "--rate: must be above 0, not 0"),
        (("tap", "x", "--out", "y", "--rate", "nan"), "--rate: must be above 0, not nan"),
        (("tap", "x", "--out", "y", "--rate", "a"), "--rate: must be a number, not 'a'"),
        (("tap", "x", "--out", "y", "--count", "a"), "--count: must be a whole number, not 'a'"),
        (("tap", "x", "--out", "y", "--owner", "no one"), "there is no user 'no one'"),
        ((*KEEP, "--slots", 0), "--slots: a ring has 1 to 1024 slots, not 0"),
        ((*KEEP, "--shape", "3,a"), "--shape: must be whole numbers above 0 with commas"),
        ((*KEEP, "--shape", "3,0"), "--shape: must be whole numbers above 0 with commas"),
        ((*KEEP, "--dtype", "zz"), "--dtype: 'zz' cannot be a frame's dtype"),
        ((*KEEP, "--dtype", "O"), "Python objects"),
        ((*KEEP, "--field", "a:b:u1:3"), "--field: must be [NAME:]DTYPE:N,N,…"),
        (("keep", "x", "--request", "3,4:f4"), "--request: must be [NAME:]DTYPE:N,N,…"),
        ((*KEEP, "--mode", "999"), "--mode: must be permission bits in octal"),
        ((*KEEP, "--meta", "pts"), "--meta: must be NAME:DTYPE with commas"),
        ((*KEEP, "--meta", "pts:zz"), "--meta: 'pts:zz' cannot be metadata"),
        ((*KEEP, "--device", "gpu"), "--device: must be host, cuda or cuda:N, not 'gpu'"),
        (("tap", "x", "--out", "y", "--out", "z"), "--out: is given more than once, but takes one"),
        (("bridge", "export", "x", "--listen", "y", "--listen", "z"), "--listen: is given more"),
        (("tap", "x", "--out", "y", "--rate=--"), "--rate: must be a number, not '--'"),
        (("tap", "x", "--out", "y", "--format=--"), "--format: invalid choice: '--'"),
        (("tpo",), "invalid choice: 'tpo' (did you mean top?)"),
        (("bridge", "exprt"), "invalid choice: 'exprt' (did you mean export?)"),
        (("top", "--onec"), "unrecognized arguments: --onec (did you mean --once?)"),
        (("inspect", "x", "--", "--json"), "unrecognized arguments: --json\n"),
        ((*KEEP, "--produces=2"), "--produces=2 (did you mean --producers?)"),
        (("bridge", "import", "h:1/x", "--insecure"), "--insecure (an option of export)"),
        (("doctor", "--device", "first"), "--device: must be cuda or cuda:N, not 'first'"),
    ],
)
def test_the_parser_says_why_it_refuses(parsed, options, reason):
    status, _, said = parsed(*options)
    assert status == 2
    assert reason in said
    assert "_" not in said.splitlines()[-1]  # names no function


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("inspect", "../x"), "cannot name a ring"),
        (("top", "../x"), "cannot name a ring"),
        (("bridge", "import", "nonsense"), "HOST:PORT/RING"),
        (("bridge", "import", "localhost:99999/x"), "HOST:PORT/RING"),
        (("bridge", "import", "localhost:1/../x"), "cannot name a ring"),
        (("bridge", "export", "x", "--listen", "nonsense"), "HOST:PORT"),
        (("bridge", "export", "x", "--timeout", "0.01"), "must be a number of seconds from 0.1"),
        (("metrics", "--otlp", "--port", 9750), "--port and --addr say where to listen"),
        (("metrics", "--once", "--addr", "::"), "--port and --addr say where to listen"),
        (("metrics", "--every", 5), "--every says how often --otlp sends"),
        (("metrics", "--otlp", "--once", "--every", 5), "give --otlp, and not --once"),
        (("trace", "--join", "a", "b", "--out", "c", "--seconds", 5), "--join traces nothing"),
        (("doctor", "--no-probe", "--device", "cuda"), "with --no-probe none is probed"),
        (("bench", "--from", "a", "--json", "b"), "--from measures nothing"),
        (("bench", "--from", "a", "--spoil"), "--from measures nothing"),
        (("bench", "--from", "a", "--device", "host"), "--from measures nothing"),
        (("bridge", "export", "x", "--key", "y", "--insecure"), "--insecure listens without"),
        ((*KEEP, "--sync", "event"), "--sync"),
        ((*KEEP, "--memory", "vmm"), "--memory"),
    ],
)
def test_a_command_that_refuses_says_why_and_ends_with_2(options, reason, command):
    if needed := {"bridge": "zmq", "trace": "perfetto"}.get(options[0]):
        pytest.importorskip(needed, reason="the command says first that it is not installed")
    done = command(*options)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert "_" not in done.stderr.splitlines()[-1].replace("'_'", "")  # names no function


def test_a_name_that_is_taken_is_told_in_options(name, command):
    with gpuring.create(name, slots=2, shape=3, dtype="u1", device="host"):
        done = command("keep", name, *KEEP[2:])
    assert done.returncode == 1
    assert "Choose another name, create it with --replace, which closes it for all" in done.stderr
    assert "=" not in done.stderr


def test_arguments_become_the_options_that_a_command_has():
    options = ("device", "replace", "max_rings")
    text = "use device='host', pass replace=True, max_rings= or owner=0 (docker --device=x)"
    assert in_options(text, options) == (
        "use --device host, pass --replace, --max-rings or owner=0 (docker --device=x)"
    )
    assert in_options("with `replace` or `reattach`", options) == "with --replace or `reattach`"
    assert (
        in_options("use device='host' (in C HOST), or not", options) == "use --device host, or not"
    )
    assert message(PermissionError(13, "Permission denied", "/x"), ()) == "/x: Permission denied"


def test_gpuring_alone_prints_help(command):
    done = command()
    assert (done.returncode, done.stderr) == (0, "")
    for name in COMMANDS:
        assert f"\n    {name}" in done.stdout


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "bench"])
def test_help_has_an_example_that_can_be_parsed_and_fits(parsed, name):
    status, said, _ = parsed(name, "--help")
    assert status == 0
    assert max(map(len, said.splitlines())) <= 80
    assert f"\n  gpuring {name}" in said


@pytest.mark.parametrize("what", ["export", "import", "keygen"])
def test_the_help_of_a_part_of_bridge_says_what_it_does(parsed, what):
    lines = parsed("bridge", what, "--help")[1].splitlines()
    assert lines[lines.index("") + 1][0].isupper()
    assert lines.index("positional arguments:") > lines.index("") + 2


def test_every_command_has_an_example():
    assert EXAMPLES.keys() == COMMANDS.keys()


def options(parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from options(each)
        yield from action.option_strings[-1:]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_on_a_page_or_in_a_section_of_its_command(command):
    """But for --spoil, with which the checks of bench are checked."""
    tools = ROOT / "docs" / "tools.md"
    pages = [page.read_text() for page in (ROOT / "docs").glob("*.md") if page != tools]
    places = [*pages, *tools.read_text().split("\n## ")]
    said = " ".join(each for each in places if re.search(rf"\bgpuring {command}\b", each))
    named = {"--spoil", *re.findall(r"(?<![\w-])--[a-z][a-z-]*", said)}
    (commands,) = _parser()._subparsers._group_actions
    assert not {*options(commands.choices[command])} - named


def test_who_stops_reading_ends_it_in_silence(name):
    """`gpuring ls | head` stops reading, for example."""
    reading, writing = os.pipe()
    os.close(reading)
    with gpuring.create(name, slots=2, shape=3, dtype="u1", device="host"):
        done = subprocess.run(
            [*COMMAND, "ls"],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_needs_no_output(name):
    with gpuring.create(name, slots=2, shape=3, dtype="u1", device="host"):
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "ls", name],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=DEADLINE_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_a_terminal_has_no_letters_for_is_replaced(name, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    with gpuring.create(name, slots=2, shape=3, dtype="u1", device="host") as ring, ring.producer():
        done = subprocess.run(
            [*COMMAND, "top", "--once", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
            env=environment,
        )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"producer" in done.stdout
    assert b"?" in done.stdout


def test_another_pipe_that_breaks_is_an_error(monkeypatch, capfd):
    def run(_):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(COMMANDS["ls"][0], "run", run)
    assert main(["ls"]) == 1
    assert capfd.readouterr().err == "gpuring ls: [Errno 32] Broken pipe\n"


def test_what_is_not_installed_is_said_also_if_its_package_is_missing():
    with pytest.raises(
        CommandError, match=r"nowhere\.module is not installed: .*'gpuring\[more\]'"
    ):
        need("json", "nowhere.module", extra="more")
