"""`python -m bench.peers`: its processes, and how it checks what they read."""

from __future__ import annotations

import os

import pytest

from bench import floor, peers
from tests.helpers.compiled import BUILD_S

pytestmark = pytest.mark.slow


def test_two_processes_in_python():
    (figure,) = peers.figures(1, 0.1, (False,), host=True)
    assert (figure.program, figure.name, figure.skipped) == ("Python", "frames/s", "")
    assert figure.values is not None
    assert figure.values.p(50) > 0


@pytest.mark.parametrize("books", ['{"frames": 0, "wrong": 0}', '{"frames": 16, "wrong": 1}'])
def test_what_was_not_read_or_is_wrong_has_no_result(tmp_path, books):
    program = tmp_path / "peers"
    program.write_text(
        "#!/bin/sh\necho joined\n"
        f"case $1 in produce) read go; echo '[0, 1]';; consume) echo '{books}';; esac\n"
    )
    program.chmod(0o755)
    with pytest.raises(peers.Failed, match="16 frames published"):
        peers.rate((str(program),), "host", 0.1, os.environ)


@pytest.mark.gpu
def test_it_measures_each_way_on_a_gpu(monkeypatch):
    for module in (peers, floor):  # each starts CUDA, which takes long on a busy machine
        monkeypatch.setattr(module, "DEADLINE_S", BUILD_S)
    found = [*peers.figures(1, 0.1, (False,), host=False)]
    assert [figure.skipped for figure in found if figure.skipped] == []
    assert len(found) == len(peers.SYNCS) * (2 + 2 + 1)
