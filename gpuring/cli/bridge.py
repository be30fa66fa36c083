"""Carry a ring to other hosts: `export` beside the ring, `import` on each host that wants it.

An exporter listens, and an importer fills a ring on its own host with the frames.  Both say on
standard error what happens, and go on over restarts of each other until Ctrl-C or SIGTERM.  Without
a key an exporter only listens on addresses of this host; `keygen` makes a pair of keys.
"""

from __future__ import annotations

import argparse
import logging
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuring import bridge
from gpuring.bridge.network.addresses import PORT
from gpuring.cli.options import (
    Parser,
    add_owner,
    device,
    nbytes,
    permissions,
    positive,
    seconds,
    slots,
)
from gpuring.cli.trouble import in_options

if TYPE_CHECKING:
    from gpuring.bridge.supervisor import Bridge

_EXPORT = """Offer a ring of this host to importers.  The ring need not be there yet.  Each importer
gets a subscription of its own, which goes on when the ring is replaced.  Ctrl-C or SIGTERM ends it.
After a kill or SIGTERM the producers wait for an exporter that is started again, for as long as
--patience, if an importer wants every frame.
"""
_IMPORT = """Fill a ring on this host with the frames of a ring on another one.  The exporter need
not be there yet.  By default every frame comes, and the producers there wait while there is no room
here.  On the exporter's own host, give the ring another name with --as.  Ctrl-C or SIGTERM ends it.
After SIGTERM the exporter keeps the frames that come until this is started again, for as long as
its --patience lasts, as after a kill.
"""
_KEYGEN = """Make the keys of an exporter and its importers, a file each.  Both have mode 0600.
Move the file for importers to their hosts, and keep its mode: scp -p.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="{export,import,keygen}", required=True)
    _add_export(_command(commands, "export", "offer a ring of this host to importers", _EXPORT))
    _add_import(
        _command(commands, "import", "fill a ring with the frames of another host", _IMPORT)
    )
    keygen = _command(commands, "keygen", "make the keys of an exporter and its importers", _KEYGEN)
    keygen.add_argument("folder", nargs="?", default=".", help="where to write them (default: .)")
    keygen.set_defaults(how=_keygen)


def _command(commands: Any, name: str, summary: str, text: str) -> argparse.ArgumentParser:
    parser: Parser = commands.add_parser(name, help=summary, description=text)
    parser.beside = commands.choices
    return parser


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the ring's name")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=f"127.0.0.1:{PORT}",
        help=f"an address of this host (default: 127.0.0.1:{PORT})",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen without a key where other hosts can reach it",
    )
    parser.add_argument(
        "--patience",
        type=seconds,
        default=60.0,
        metavar="S",
        help="keep the frames of an importer that is gone for S seconds; a lossless one "
        "holds up the producers meanwhile (default: 60)",
    )
    add_owner(parser)
    _add_common(parser, "the GPU under which a ring on a GPU is used: cuda (default) or cuda:N")
    parser.set_defaults(how=_export)


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="HOST:PORT/RING", help="the exporter, and its ring")
    parser.add_argument(
        "--as", dest="name", metavar="NAME", help="the ring's name on this host (default: the same)"
    )
    parser.add_argument(
        "--slots", type=slots, default=16, metavar="N", help="slots of the ring here (default: 16)"
    )
    policy = parser.add_mutually_exclusive_group()
    policy.add_argument(
        "--lossy",
        dest="policy",
        action="store_const",
        const="lossy",
        default="lossless",
        help="do not hold up the producers there: leave out frames that there is no room for",
    )
    policy.add_argument(
        "--latest",
        dest="policy",
        action="store_const",
        const="latest",
        help="take only the newest frame, whenever one can be sent",
    )
    parser.add_argument(
        "--in-flight",
        type=nbytes,
        default=256 << 20,
        metavar="BYTES",
        help="how much may be on its way: 64MiB, 1GiB (default: 256MiB)",
    )
    parser.add_argument(
        "--engine",
        choices=("auto", "zmq", "nixl"),
        default="auto",
        help="what carries the frames (default: auto)",
    )
    parser.add_argument(
        "--give-up",
        type=seconds,
        metavar="S",
        help="end after S seconds without the exporter or its ring (default: never)",
    )
    parser.add_argument(
        "--mode",
        type=permissions,
        default=0o600,
        metavar="0600",
        help="permissions of the ring here, in octal (default: 0600, for one user)",
    )
    _add_common(parser, "where the ring here is: host, cuda (default) or cuda:N")
    parser.set_defaults(how=_import)


def _add_common(parser: argparse.ArgumentParser, where: str) -> None:
    parser.add_argument("--key", metavar="FILE", help="this side's key, from keygen")
    parser.add_argument(
        "--timeout",
        type=positive,
        default=3.0,
        metavar="S",
        help="the other side is gone after S seconds of silence (default: 3)",
    )
    parser.add_argument("--device", type=device, help=where)


def run(args: argparse.Namespace) -> int:
    how: Callable[[argparse.Namespace], int] = args.how
    return how(args)


def _keygen(args: argparse.Namespace) -> int:
    ours, theirs = bridge.keygen(args.folder)
    print(f"{ours}: for gpuring bridge export --key, on the host of the ring")
    print(f"{theirs}: for gpuring bridge import --key; move it to the other hosts")
    return 0


def _export(args: argparse.Namespace) -> int:
    if args.insecure and args.key is not None:
        raise ValueError("--insecure listens without a key: give it or --key")
    asked = ("listen", "key", "insecure", "patience", "timeout", "device", "owner")
    options = {name: getattr(args, name) for name in asked}
    return _stay(args, lambda: bridge.export(args.name, **options))


def _import(args: argparse.Namespace) -> int:
    asked = ("name", "slots", "device", "policy", "in_flight", "engine", "key", "timeout")
    options = {name: getattr(args, name) for name in (*asked, "give_up", "mode")}
    return _stay(args, lambda: bridge.import_(args.address, **options))


class _InOptions(logging.Formatter):
    """Lines of the log, with the options of the commands of both sides where they speak of
    arguments: an importer tells what its exporter has said."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")
        self._options = {*vars(args), "owner"}

    def formatMessage(self, record: logging.LogRecord) -> str:
        return in_options(super().formatMessage(record), self._options)


def _stay(args: argparse.Namespace, make: Callable[[], Bridge]) -> int:
    """Keeps a bridge until Ctrl-C or SIGTERM.  Raises RingError if it cannot go on."""
    came: list[int] = []

    def end(number: int, _: Any) -> None:
        came.append(number)
        if len(came) == 1:  # the next one would interrupt the end
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it is not ignored
        signal.signal(signal.SIGINT, end)
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: record.levelno < logging.ERROR)  # those are raised, too
    handler.setFormatter(_InOptions(args))
    log = logging.getLogger("gpuring.bridge")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    made = make()
    try:
        made.wait()
    except KeyboardInterrupt:
        log.info("ending")
    finally:
        made.close(again=came[:1] == [signal.SIGTERM])  # a service may be started again
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is end:  # which Python drops before the process has ended
                signal.signal(number, signal.SIG_IGN)
    made.wait()  # raises what went wrong while it ended
    return 0
