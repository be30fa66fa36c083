"""Remove rings whose processes are all dead, and say which.  Living rings are left alone."""

from __future__ import annotations

import argparse

from gpuring import directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    removed = directory.clean()
    for name in removed:
        print(f"removed {name}")
    if not removed:
        print("nothing to remove: no ring of this user without a living process")
    return 0
