"""What `gpuring doctor --json` finds on this machine."""

from __future__ import annotations

import json
from typing import get_args

import gpuring
from gpuring.cli.doctor.finding import Level
from tests.helpers.commands import gpuring as command

ON_GPU = ["probe: memory", "probe: vmm", "probe: event", "probe: timeline", "probe: pinned"]
PROBES = ["probe: host", "probe: death", *ON_GPU]
LEVELS = get_args(Level)


def findings(*options, **more):
    """The exit status, and the findings by their subjects."""
    done = command("doctor", "--json", *options, **more)
    document = json.loads(done.stdout)
    assert set(document) == {"gpuring", "counts", "findings"}
    assert document["gpuring"] == gpuring.__version__
    listed = document["findings"]
    for finding in listed:
        assert set(finding) == {"level", "what", "found", "fix"}
        assert all(isinstance(value, str) for value in finding.values())
        assert finding["level"] in LEVELS
        assert finding["found"]
        if finding["level"] != "skip":  # what is not installed may be
            assert (finding["level"] == "ok") == (not finding["fix"]), finding
    assert len({finding["what"] for finding in listed}) == len(listed)
    levels = [finding["level"] for finding in listed]
    assert document["counts"] == {level: levels.count(level) for level in LEVELS}
    assert done.returncode == (1 if "fail" in levels else 0), done.stderr
    return done.returncode, {finding["what"]: finding for finding in listed}
