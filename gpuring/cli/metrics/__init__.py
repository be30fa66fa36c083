"""Serve what the rings of this host are doing to Prometheus, or send it to OpenTelemetry.

Each look reads the rings' headers only.  It needs no GPU, joins nothing and changes nothing.
Ctrl-C or SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import time
from typing import TYPE_CHECKING

from gpuring.cli.ending import ending
from gpuring.cli.options import Refused, count, port, positive
from gpuring.cli.text import complain
from gpuring.cli.trouble import CommandError, need

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

PORT = 9750
ADDR = "127.0.0.1"
EVERY_S = 15.0


def _receiver(text: str) -> str:
    if text and not text.startswith(("http://", "https://")):
        raise Refused(f"must be the URL of a receiver, such as http://localhost:4318, not {text!r}")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        type=port,
        metavar="N",
        help=f"the port to listen on (default: {PORT}; 0: any free one)",
    )
    parser.add_argument(
        "--addr", metavar="ADDR", help=f"the address to listen on (default: {ADDR})"
    )
    parser.add_argument(
        "--otlp",
        type=_receiver,
        nargs="?",
        const="",
        metavar="URL",
        help="do not listen, but send to a receiver of OTLP over HTTP, such as "
        "http://localhost:4318 (default: OTEL_EXPORTER_OTLP_ENDPOINT, or else this URL)",
    )
    parser.add_argument(
        "--every",
        type=positive,
        metavar="S",
        help=f"with --otlp: send every S seconds (default: {EVERY_S:g})",
    )
    parser.add_argument(
        "--once", action="store_true", help="print the metrics, or send them, and end"
    )
    parser.add_argument(
        "--max-rings",
        type=count,
        default=64,
        metavar="N",
        help="give the metrics of the first N rings only, by name (default: 64)",
    )


def run(args: argparse.Namespace) -> int:
    if (args.once or args.otlp is not None) and (args.port, args.addr) != (None, None):
        raise ValueError(
            "--port and --addr say where to listen, and with --otlp or --once nothing listens"
        )
    if (args.once or args.otlp is None) and args.every is not None:
        raise ValueError("--every says how often --otlp sends: give --otlp, and not --once")
    need("prometheus_client")
    from prometheus_client import CollectorRegistry, generate_latest

    from .collector import RingCollector

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    collector = RingCollector(args.max_rings)
    if args.otlp is not None:
        return _send(args, collector)
    registry = CollectorRegistry()
    registry.register(collector)
    if args.once:
        print(generate_latest(registry).decode(), end="")
        return 0
    return _serve(args, registry)


def _serve(args: argparse.Namespace, registry: CollectorRegistry) -> int:
    """Answers Prometheus until Ctrl-C."""
    from prometheus_client import start_http_server

    port = PORT if args.port is None else args.port
    addr = ADDR if args.addr is None else args.addr
    with ending() as wait:
        try:
            server, _ = start_http_server(port, addr, registry)
        except OSError as error:
            raise CommandError(
                f"cannot listen on {addr}:{port} ({error.strerror or error}). "
                "Give another --port or --addr"
            ) from error
        host = f"[{addr}]" if ":" in addr else addr
        print(f"serving http://{host}:{server.server_port}/metrics; Ctrl-C ends it", flush=True)
        wait()
        server.shutdown()
        server.server_close()
    return 0


def _send(args: argparse.Namespace, collector: Collector) -> int:
    need("opentelemetry.exporter.otlp.proto.http", extra="otel")
    from .otlp import OtlpExporter

    if args.once:
        exporter = OtlpExporter(collector, args.otlp or None)
        if (why := exporter.send()) is not None:
            raise CommandError(f"{exporter.address} has not taken the metrics ({why})")
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        _keep_sending(collector, args.otlp or None, args.every or EVERY_S)
    return 0


def _keep_sending(collector: Collector, address: str | None, every_s: float) -> None:
    """Where nobody takes the metrics, it says so at once, once, and goes on."""
    from .otlp import OtlpExporter

    failing = False

    def fails(why: str) -> None:
        nonlocal failing
        if not failing:
            complain(
                f"gpuring metrics: {exporter.address} takes nothing ({why}); it goes on trying"
            )
        failing = True

    exporter = OtlpExporter(collector, address, fails)
    print(f"sending to {exporter.address} every {every_s:g} s; Ctrl-C ends it", flush=True)
    while True:
        begun = time.monotonic()
        if (why := exporter.send()) is not None:
            fails(why)
        elif failing:
            complain(f"gpuring metrics: {exporter.address} takes the metrics again")
            failing = False
        time.sleep(max(0.0, begun + every_s - time.monotonic()))
