"""The graph as lines: the rings from the first one on, each with who writes and who reads it.

cam0: 4 slots, full, 0.0/s
◀ camera 4700, 0.0/s, waiting
├▶ viewer, 0/4, 0.0/s: viewer 4712, waiting
└▶ detector, 4/4, 0.0/s: detector 4711, waiting ▶ seen0
   seen0: …
"""

from __future__ import annotations

from gpuring.cli.inspect import elsewhere, peer_state, pid
from gpuring.cli.owners import explained
from gpuring.cli.text import wrap
from gpuring.cli.why import blamed, brief
from gpuring.printable import printable

from .graph import Edge, Graph
from .lines import Line, single

_STEP = 3
_DEEPEST = 5
"""Rings further on are not moved to the right any more, so that lines have room."""


def rows(whole: Graph, width: int | None = None) -> list[Line]:
    """What is stuck is red, and marked with "!" where there are no colours.  Who is to blame is
    marked with "!!"."""
    lines = [Line(wrap(text, width, "  ")) for text in explained(whole.unreadable)]
    lines += [] if whole.rings or lines else [Line("No rings")]
    for jam in whole.jams:
        lines.append(Line(wrap(brief(jam), width, "  "), "bold red"))
        lines += [Line(wrap(f"!! {blamed(end)}", width, "   "), "red") for end in jam.culprits]
    lines += [Line("")] if lines else []
    for name in whole.rings:
        lines += _of_ring(whole, name, width)
    lines += [Line(note, "dim") for note in elsewhere(edge.peer for edge in whole.edges)]
    return single(lines)


def _of_ring(whole: Graph, name: str, width: int | None) -> list[Line]:
    space = " " * _STEP * min(_DEEPEST, whole.layers[name])
    lines = [_line(space, f"{name}: {whole.figures[name]}", name in whole.stuck, "bold", width)]
    for edge in whole.of_ring(name, writes=True):
        text = f"◀ {_process(edge)}, {edge.figures}{_state(edge)}"
        lines.append(_line(space, text, edge.stuck, "", width, _is_culprit(whole, edge)))
    below: list[tuple[str, bool, bool]] = []
    for edge in whole.of_ring(name, writes=False):
        filled = ", ".join(
            dict.fromkeys(e.ring for e in whole.of_process(edge.process, writes=True))
        )
        onto = f" ▶ {filled}" if filled else ""
        text = f"▶ {edge.subscription}, {edge.figures}: {_process(edge)}{_state(edge)}{onto}"
        below.append((text, edge.stuck, _is_culprit(whole, edge)))
    stuck = name in whole.stuck
    below += [(f"▶ {printable(each)}: nobody", stuck, stuck) for each in whole.nobody[name]]
    for n, (text, red, culprit) in enumerate(below, 1):
        corner = "└" if n == len(below) else "├"
        lines.append(_line(space, f"{corner}{text}", red, "", width, culprit))
    return lines


def _line(
    space: str, text: str, stuck: bool, style: str, width: int | None, culprit: bool = False
) -> Line:
    mark = ("!!" if culprit else "! ") if stuck else "  "
    whole = wrap(f"{mark} {space}{text}", width, f"   {space}   ")
    return Line(whole, f"{style} red".strip() if stuck else style)


def _process(edge: Edge) -> str:
    return f"{printable(edge.peer.label)} {pid(edge.peer)}"


def _state(edge: Edge) -> str:
    state = peer_state(edge.peer)
    return "" if state == "running" else f", {state}"


def _is_culprit(whole: Graph, edge: Edge) -> bool:
    return edge.stuck and edge.process in whole.culprits and not edge.writes
