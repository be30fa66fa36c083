"""The graph as a picture, laid out by graphviz."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

from gpuring.cli.inspect import peer_state
from gpuring.cli.trouble import CommandError
from gpuring.cli.why import blamed
from gpuring.printable import printable
from gpuring.registry import processes

from .graph import Graph, Key

_LONGEST_S = 60.0
_RED = "#c62828"
_HEAD = """digraph gpuring {
rankdir=LR; bgcolor=white; fontname="Helvetica"; nodesep=0.25; ranksep=0.6;
node [fontname="Helvetica", fontsize=11, style=filled, fillcolor="#f5f5f5", color="#757575"];
edge [fontname="Helvetica", fontsize=9, color="#757575", arrowsize=0.7];"""


def svg(whole: Graph) -> bytes:
    """Raises CommandError if graphviz is not installed or fails."""
    program = shutil.which("dot")
    if program is None:
        raise CommandError(
            "graphviz is not installed, which draws the picture: `apt install graphviz`, or what "
            "your system has for it. Without --svg the graph is drawn in the terminal"
        )
    try:
        done = subprocess.run(
            [program, "-Tsvg"],
            input=dot(whole).encode(),
            capture_output=True,
            check=True,
            timeout=_LONGEST_S,
        )
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode(errors="replace").strip()
        raise CommandError(f"graphviz failed: {why}") from None
    except subprocess.TimeoutExpired:
        raise CommandError(f"graphviz was not done after {_LONGEST_S:g} s") from None
    return done.stdout


def dot(whole: Graph) -> str:
    """The graph in the language of graphviz: rings are boxes, and processes are ellipses."""
    return "\n".join((_HEAD, *_nodes(whole), *_edges(whole), "}", ""))


def _nodes(whole: Graph) -> Iterator[str]:
    if whole.jams:
        told = [blamed(end) for jam in whole.jams for end in jam.culprits]
        yield f'label={_quoted(*told)}; labelloc=t; fontcolor="{_RED}"; fontsize=12;'
    for name in whole.rings:
        look = _red(name in whole.stuck, False)
        label = _quoted(name, whole.figures[name])
        yield f"{_quoted('ring ' + name)} [shape=box, label={label}{look}];"
        for each in whole.nobody[name]:
            look = _red(name in whole.stuck, name in whole.stuck)
            node = _quoted(f"nobody {name} {each}")
            yield f"{node} [shape=ellipse, style=dashed, label={_quoted('nobody')}{look}];"
    seen: set[Key] = set()
    for edge in whole.edges:
        if edge.process not in seen:
            seen.add(edge.process)
            peers = [each.peer for each in whole.edges if each.process == edge.process]
            states = {peer_state(peer) for peer in peers} - {"running"}
            names = " / ".join(dict.fromkeys(printable(peer.label) for peer in peers))
            has = processes.told(edge.peer.pid_here or edge.peer.pid, edge.peer.pid_here is None)
            label = _quoted(names, has, *sorted(states))
            stuck = any(each.stuck for each in whole.edges if each.process == edge.process)
            look = _red(stuck, edge.process in whole.culprits)
            yield f"{_process(edge.process)} [shape=ellipse, label={label}{look}];"


def _edges(whole: Graph) -> Iterator[str]:
    for edge in whole.edges:
        ring, process = _quoted(f"ring {edge.ring}"), _process(edge.process)
        ends = f"{process} -> {ring}" if edge.writes else f"{ring} -> {process}"
        label = _quoted(*filter(None, (edge.subscription, edge.figures)))
        yield f"{ends} [label={label}{_red(edge.stuck, False)}];"
    for name, subscriptions in whole.nobody.items():
        for each in subscriptions:
            ends = f"{_quoted('ring ' + name)} -> {_quoted(f'nobody {name} {each}')}"
            yield f"{ends} [label={_quoted(printable(each))}{_red(name in whole.stuck, False)}];"


def _process(key: Key) -> str:
    return _quoted(f"process {key[0]} {key[1]}")


def _red(stuck: bool, culprit: bool) -> str:
    fill = f', fillcolor="{_RED}", fontcolor=white' if culprit else ""
    return f', color="{_RED}", penwidth=2.5{fill}' if stuck else ""


def _quoted(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
