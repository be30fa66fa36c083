"""What carries the bytes of frames from one host to another, and the choice of one.

contract.py    what the bridge needs of an engine; engines know nothing else of it but wire.MAX_PART
slabs.py       the slots of a ring as an engine sees them
gpu_copies.py  copies to and from memory of a GPU, and which of them are done
zmq/, nixl/    the engines

Whoever adds an engine also names it in bridge/__init__.py (`engine=`) and in cli/bridge.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from gpuring.bridge.engines.contract import Engine, EngineError, Slab

MODULES = {name: f"{__name__}.{name}" for name in ("nixl", "zmq")}
"""The module of each engine by its name, in the order in which `auto` asks them."""


def engine(name: str) -> Engine:
    """The engine of this name.  Raises EngineError if it is not there."""
    if name not in MODULES:
        raise EngineError(f"there is no engine {name!r} here")
    return cast(Engine, import_module(MODULES[name]))


def facts() -> dict[str, dict[str, Any]]:
    """The facts of each engine that can be used here."""
    known = {name: engine(name).facts() for name in MODULES}
    return {name: dict(facts) for name, facts in known.items() if facts is not None}


def why_not(name: str) -> str:
    """Why an engine cannot be used here."""
    from gpuring.bridge.engines.nixl.agent import package

    try:
        package()
    except EngineError as error:
        return str(error)
    return f"there is no engine {name!r} here"


def choose(
    wanted: str,
    near: Mapping[str, Mapping[str, Any]],
    far: Mapping[str, Mapping[str, Any]],
    slab: Slab,
) -> tuple[Engine, str]:
    """The engine of a session, and why.  `near` and `far` are the facts of the two sides.

    Raises EngineError if they have no engine in common, or not the one that was asked for.
    """
    if wanted != "auto":
        for side, known in (("the exporter's", near), ("this", far)):
            if wanted not in known:
                raise EngineError(f"engine {wanted!r} cannot be used on {side} side")
        return engine(wanted), "it was asked for"
    reasons = []
    for name in (name for name in MODULES if name in near and name in far):
        taken, reason = engine(name).suits(near[name], far[name], slab)
        reasons.append(reason if taken else f"{name}: {reason}")
        if taken:
            return engine(name), "; ".join(reasons)
    raise EngineError("the two sides have no engine in common" + "".join(f"; {r}" for r in reasons))
