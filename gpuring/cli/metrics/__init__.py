"""Serve what the rings of this host are doing to Prometheus, over HTTP.

Each scrape reads the rings' headers only.  It needs no GPU, joins nothing and changes nothing.
Ctrl-C or SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import signal

from gpuring.cli.options import count, port
from gpuring.cli.trouble import CommandError, need

PORT = 9750


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        type=port,
        default=PORT,
        metavar="N",
        help=f"the port to listen on (default: {PORT}; 0: any free one)",
    )
    parser.add_argument(
        "--addr", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument("--once", action="store_true", help="print the metrics and end")
    parser.add_argument(
        "--max-rings",
        type=count,
        default=64,
        metavar="N",
        help="tell of the first N rings by name only (default: 64); a ring has up to 250 peers",
    )


def run(args: argparse.Namespace) -> int:
    need("prometheus_client")
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server

    from .collector import RingCollector

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    registry = CollectorRegistry()
    registry.register(RingCollector(args.max_rings))
    if args.once:
        print(generate_latest(registry).decode(), end="")
        return 0
    try:
        server, _ = start_http_server(args.port, args.addr, registry)
    except OSError as error:
        raise CommandError(
            f"cannot listen on {args.addr}:{args.port} ({error.strerror or error}). "
            "Give another --port or --addr"
        ) from error
    host = f"[{args.addr}]" if ":" in args.addr else args.addr
    print(f"serving http://{host}:{server.server_port}/metrics; Ctrl-C ends it", flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        server.shutdown()
        server.server_close()
    return 0
