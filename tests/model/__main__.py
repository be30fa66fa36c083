"""`python -m tests.model [--long] [name ...]`: states and time of each configuration and mutant."""

import argparse
import sys

from .configs import CI, LONG
from .mutants import MUTANTS


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument(
        "--long", action="store_true", help="the large configurations, too (takes minutes)"
    )
    parser.add_argument("names", nargs="*", help="only configurations and mutants with such a name")
    asked = parser.parse_args()
    if unknown := {*asked.names} - {*CI, *LONG, *MUTANTS}:
        parser.error(f"there is no {' and no '.join(sorted(unknown))}")
    failed = 0

    def tell(name, report, right):
        nonlocal failed
        failed += not right
        print(
            f"{'ok  ' if right else 'FAIL'} {name:48} {report if not right else report.head()}",
            flush=True,
        )

    for name, explore in {**CI, **(LONG if asked.long or asked.names else {})}.items():
        if not asked.names or name in asked.names:
            report = explore()
            tell(name, report, not report.violation)
    for name, mutant in MUTANTS.items():
        if not asked.names or name in asked.names:
            report = mutant.explore(name)
            tell(f"{name} off: {mutant.hole}", report, report.violation.startswith(mutant.caught))
            if name in asked.names:
                print(*report.trace, sep="\n")
            if not mutant.slow or asked.long:
                report = mutant.explore()
                tell(f"{name} on", report, not report.violation)
    return 1 if failed else 0


sys.exit(main())
