"""Runs torch's own test file of DataLoader with that of gpuring in its place.

    python -m tests.torch.conformance PATH/TO/test_dataloader.py [--only EXPRESSION] [--torch]

The file is test/test_dataloader.py of the torch version that is installed.  It is not kept here.
`conformance.toml` lists the tests that cannot pass, each with the reason.  The run fails if any
other test fails, and if a listed one passes.  --torch leaves torch's own class in place, which
shows the tests that cannot pass on this machine anyway.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests import ROOT

PUT_IN_PLACE = """\
import torch.utils.data, gpuring.torch
torch.utils.data.DataLoader = gpuring.torch.DataLoader
"""
KNOWN = Path(__file__).with_name("conformance.toml")


def outcomes(source: str, only: str) -> dict[str, str]:
    """The outcome of each test: "passed", "skipped", or the message of a failure."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        file, report = Path(folder, "test_dataloader.py"), Path(folder, "report.xml")
        file.write_text(source)
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-k", only]
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, str(file)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            check=False,
        )
        for case in ET.parse(report).getroot().iter("testcase"):
            name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
            found[name] = "passed"
            for what in case:
                if what.tag == "skipped":
                    found[name] = "skipped"
                elif what.tag in ("failure", "error"):
                    found[name] = what.get("message") or "failed"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torch.conformance", description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--only", default="", help="selects tests as -k of pytest does")
    parser.add_argument("--torch", action="store_true", help="runs torch's own class")
    args = parser.parse_args()
    source = args.path.read_text()
    if not args.torch:
        # The replacement is in place in the programs that tests start, too.
        source = re.sub(r"^(?=from torch\.utils\.data import )", PUT_IN_PLACE, source, flags=re.M)
    known = {} if args.torch else tomllib.loads(KNOWN.read_text())
    found = outcomes(source, args.only)
    failed = {name for name, what in found.items() if what not in ("passed", "skipped")}
    for name in sorted(failed - known.keys()):
        print(f"FAILED {name}: {found[name].splitlines()[0][:200]}")
    for name in sorted(known.keys() & found.keys() - failed):
        print(f"LISTED AND {found[name].upper()} {name}: {known[name]}")
    print(dict(Counter("failed" if name in failed else found[name] for name in found)))
    return int(bool(failed - known.keys()) or not found)


if __name__ == "__main__":
    sys.exit(main())
