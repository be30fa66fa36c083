"""One peer, or several, by themselves: python -m gpuring.cli.bench.peers [--quick] [NAME …]"""

from __future__ import annotations

import argparse
import time

from gpuring.cli.bench.crew import Crew
from gpuring.cli.bench.peers import PEERS
from gpuring.cli.bench.peers.measure import measure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gpuring.cli.bench.peers")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--mps", action="store_true", help="the Multi-Process Service is on")
    settings = parser.parse_args()
    with Crew() as crew:
        for peer in PEERS:
            if settings.names and peer.name not in settings.names:
                continue
            start = time.monotonic()
            verified = ""
            for figure in measure(peer, settings, crew):
                kind = f"{figure.setting['nbytes']} B, kernel {figure.setting['kernel']}"
                what = f"{figure.program} | {figure.name} {figure.setting.get('side', '')} | {kind}"
                if figure.values is None:
                    print(f"{what} | {figure.skipped}", flush=True)
                else:
                    p10, p50, p99 = (figure.values.p(quantile) for quantile in (10, 50, 99))
                    print(
                        f"{what} | p10 {p10:g}  p50 {p50:g}  p99 {p99:g} {figure.unit}", flush=True
                    )
                verified = figure.verified or verified
            print(f"  {verified} [{time.monotonic() - start:.1f} s]", flush=True)


if __name__ == "__main__":
    main()
