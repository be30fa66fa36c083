"""The benchmark of bridges between GPUs checks frames, and survives kills.  Here it uses host
memory."""

from __future__ import annotations

import json

import pytest

from tests.helpers.commands import module


@pytest.mark.slow
def test_it_carries_and_checks_frames_and_survives_kills(tmp_path):
    pytest.importorskip("zmq", reason="bridges need pyzmq")
    out = tmp_path / "out.json"
    options = ["--host", "--seconds", 0.1, "--only", "zmq", "--json", out]
    done = module("bench.bridge_gpu", *options, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    for name in ("bridge, host → host, zmq, beside raw sockets", "kills, host → host, zmq"):
        figures = found[name]
        assert figures["frames"] > 0, figures
        assert figures["frames missing"] == figures["out of order"] == 0, figures
        assert figures["words wrong"] == 0, figures
    assert found["bridge, host → host, zmq, beside raw sockets"]["of raw sockets"] > 0
    assert len(found["kills, host → host, zmq"]["s until frames came again"]) == 4
