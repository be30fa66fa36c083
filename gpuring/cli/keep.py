"""Hold a ring or a service open in a process of its own, so that others can come and go.

The keeper owns the memory, and takes no frames and no calls.  There is an option for everything
that gpuring.create() and gpuring.serve() take.  --request and --response make a service.  On
Ctrl-C or SIGTERM it closes what it has made, and ends.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Collection
from typing import Any

import gpuring
from gpuring import slot_layout
from gpuring.cli.ending import ending
from gpuring.cli.options import Refused, add_order, count, device, permissions, slots
from gpuring.cli.text import nbytes, of_memory
from gpuring.memory import kinds
from gpuring.printable import counted

BOTH = ("slots", "device", "sync", "gate", "memory", "mode", "replace")
RING = (
    *("shape", "dtype", "fields", "meta"),
    *("producers", "subscriptions", "max_peers", "max_subscriptions"),
)
SERVICE = ("request", "response", "request_meta", "response_meta", "answers", "redeliver")
_ARRAY = "[NAME:]DTYPE:N,N,…"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the name of the ring or service")
    parser.add_argument(
        "--slots",
        type=slots,
        metavar="N",
        help="how many slots (default of a service: 64)",
    )
    parser.add_argument("--device", type=device, help="host, cuda (default) or cuda:N")
    parser.add_argument(
        "--memory",
        choices=("auto", *kinds.ON_GPU, "pinned"),
        default="auto",
        help="how the slots on a GPU are shared; pinned: in host memory (default: auto)",
    )
    add_order(parser)
    parser.add_argument(
        "--mode", type=permissions, metavar="0600", help="permissions, in octal (default: 0600)"
    )
    parser.add_argument(
        "--replace",
        action="store_const",
        const=True,
        help="close a ring of this name even if its creator is alive",
    )
    ring = parser.add_argument_group("a ring")
    ring.add_argument(
        "--shape", type=_shape, metavar="N,N,…", help="the shape of a frame: 1080,1920,3"
    )
    ring.add_argument("--dtype", type=_dtype, help="the dtype of a frame: uint8, f4, bfloat16, …")
    ring.add_argument(
        "--field",
        dest="fields",
        type=_array,
        action="append",
        metavar="NAME:DTYPE:N,N,…",
        help="one of several arrays in a slot, instead of --shape and --dtype: y:u1:1080,1920",
    )
    ring.add_argument(
        "--meta",
        type=_meta,
        action="extend",
        metavar="NAME:DTYPE,…",
        help="metadata of a frame: pts:i8,exposure:f4 (default: none; may be repeated)",
    )
    ring.add_argument(
        "--producers",
        type=count,
        metavar="N",
        help="how many producers make the stream (default: 1)",
    )
    ring.add_argument(
        "--subscription",
        dest="subscriptions",
        action="append",
        metavar="NAME",
        help="a durable subscription, for which producers wait also before its first reader comes",
    )
    ring.add_argument(
        "--max-peers",
        type=count,
        metavar="N",
        help="how many peers may be in the ring at a time (default: 32)",
    )
    ring.add_argument(
        "--max-subscriptions",
        type=count,
        metavar="N",
        help="how many subscriptions it may have at a time (default: 16)",
    )
    service = parser.add_argument_group("a service")
    for what in ("request", "response"):
        service.add_argument(
            f"--{what}",
            type=_array,
            action="append",
            metavar=_ARRAY,
            help=f"what a {what} holds: f4:3,224,224; each of several arrays has a name",
        )
        service.add_argument(
            f"--{what}-meta",
            type=_meta,
            action="extend",
            metavar="NAME:DTYPE,…",
            help=f"metadata of a {what}",
        )
    service.add_argument("--answers", choices=("host",), help="put answers into host memory")
    service.add_argument(
        "--no-redeliver",
        dest="redeliver",
        action="store_const",
        const=False,
        help="lose the calls of an engine that dies, instead of giving them to another one",
    )


def run(args: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ending() as wait, _made(args) as made:
        one = made.stats()
        print(
            f"keeping {one.name}: {counted(one.slots, 'slot')} of {nbytes(one.slot_nbytes)} "
            f"{of_memory(one.memory, one.sync, one.gate)}; Ctrl-C ends it",
            flush=True,
        )
        wait()
        print(f"closing {args.name}", flush=True)
    return 0


def _made(args: argparse.Namespace) -> gpuring.Ring | gpuring.Server:
    ring, service = _given(args, RING), _given(args, SERVICE)
    both = _given(args, BOTH)
    for what in ("meta", "request-meta", "response-meta"):
        names = [name for name, _ in getattr(args, what.replace("-", "_")) or ()]
        if len(set(names)) < len(names):
            raise ValueError(f"each field of --{what} has a name of its own")
    if service:
        if ring:
            raise ValueError(
                f"--{_option(ring)} is for a ring, and --{_option(service)} for a service"
            )
        if not (args.request and args.response):
            raise ValueError("a service needs --request and --response")
        for what in ("request", "response"):
            service[what] = _arrays(what, service[what])
        return gpuring.serve(args.name, engine=False, label="keep", **both, **service)
    if args.slots is None:
        raise ValueError("a ring needs --slots")
    if args.fields is not None:
        ring["fields"] = _arrays("field", args.fields)
        if not isinstance(ring["fields"], dict) or args.shape or args.dtype:
            raise ValueError("--field has a name, and takes the place of --shape and --dtype")
    elif args.shape is None or args.dtype is None:
        raise ValueError("a ring needs --shape and --dtype, or --field for several arrays")
    made = gpuring.create(args.name, **both, **ring)
    try:
        made.watch()
    except BaseException:
        made.close()
        raise
    return made


def _given(args: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    """The options that were given, so that the others have the defaults of the library."""
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def _option(given: dict[str, Any]) -> str:
    name = next(iter(given))
    special = {
        "fields": "field",
        "subscriptions": "subscription",
        "redeliver": "no-redeliver",
    }
    return special.get(name, name.replace("_", "-"))


def _arrays(what: str, given: list[tuple[str, Any]]) -> Any:
    """(shape, dtype), or {name: (shape, dtype)} if they have names."""
    names = [name for name, _ in given]
    if names == [""]:
        return given[0][1]
    if "" in names or len(set(names)) < len(names):
        raise ValueError(f"with several arrays each --{what} needs a name of its own")
    return dict(given)


def _array(text: str) -> tuple[str, tuple[tuple[int, ...], Any]]:
    """The name, the shape and the dtype of "y:u1:1080,1920", "u1:1080,1920", "n:i8" or "i8"."""
    parts = text.split(":")
    shape = parts.pop() if len(parts) > 1 and parts[-1][:1].isdecimal() else ""
    is_shape = parts[0].replace(",", "").isdecimal()  # 3,224,224:f4 is no array of that name
    if len(parts) > 2 or (is_shape and not shape):
        raise Refused(f"must be {_ARRAY}, such as f4:3,224,224 or y:u1:1080,1920, not {text!r}")
    return "".join(parts[:-1]), (_shape(shape) if shape else (), _dtype(parts[-1]))


def _shape(text: str) -> tuple[int, ...]:
    try:
        extents = tuple(int(extent) for extent in text.split(","))
    except ValueError:
        extents = (0,)
    if min(extents) < 1:
        raise Refused(
            f"must be whole numbers above 0 with commas, such as 1080,1920,3, not {text!r}"
        )
    return extents


def _dtype(text: str) -> Any:
    """Raises Refused for what cannot be in a slot."""
    try:
        slot_layout.make(shape=1, dtype=text)
    except (TypeError, ValueError) as error:
        why = str(error).removeprefix(f"field {slot_layout.ARRAY!r}: ")
        raise Refused(f"{text!r} cannot be a frame's dtype ({why})") from None
    return text


def _meta(text: str) -> list[tuple[str, str]]:
    """Raises Refused for what cannot be metadata."""
    fields = [part.partition(":") for part in text.split(",")]
    if not all(name and dtype for name, _, dtype in fields):
        raise Refused(f"must be NAME:DTYPE with commas, such as pts:i8,exposure:f4, not {text!r}")
    meta = [(name, dtype) for name, _, dtype in fields]
    try:
        slot_layout.make(shape=1, dtype="u1", meta=meta)
    except (TypeError, ValueError) as error:
        raise Refused(f"{text!r} cannot be metadata ({error})") from None
    return meta
