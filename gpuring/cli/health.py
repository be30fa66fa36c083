"""Say in one line whether a service can be asked, for load balancers and for people.

The exit status is 0 if an engine of the service is ready.  It is 1 if none is, or if no request can
be sent, because an engine that is not ready keeps the service full.  It is 3 if there is no such
service or it cannot be read.

The command reads the header of the service.  If no engine is ready, or one has had a call for long,
it reads those of other rings, too, and says who has the call and for what it waits.  It needs no
GPU, joins nothing and changes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from gpuring.cli.options import positive, seconds
from gpuring.cli.trouble import CannotLook, message
from gpuring.errors import RingError
from gpuring.registry.jams import STUCK_S
from gpuring.service import health


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the service's name")
    parser.add_argument(
        "--within",
        type=positive,
        default=10.0,
        metavar="S",
        help="an engine is ready if it has waited for calls, or taken some, within the last S "
        "seconds (default: 10); take more than the longest batch needs",
    )
    parser.add_argument(
        "--after",
        type=seconds,
        default=STUCK_S,
        metavar="S",
        help="name an engine that has had a call for S seconds and sends nothing (default: 2)",
    )
    parser.add_argument("--json", action="store_true", help="print everything known, as JSON")


def run(args: argparse.Namespace) -> int:
    try:
        found = health(args.name, args.within, args.after)
    except (RingError, OSError) as error:
        raise CannotLook(message(error, ())) from None
    if args.json:
        print(json.dumps(dataclasses.asdict(found)))
    else:
        print(f"{found.name}: {'ok' if found.ok else 'not ok'}, {found.why}")
    return 0 if found.ok else 1
