"""bench/loader.py without a GPU: how it checks batches, and what it writes."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

import torch

from bench import loader
from tests.helpers import commands


@pytest.mark.slow
def test_figures(tmp_path):
    out = tmp_path / "loader.json"
    only = ("64×3×32×32", "detection")
    done = commands.module(
        "bench.loader", "--host", "--rounds", 1, "--seconds", 0.1, "--only", *only, "--json", out
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())["figures"]
    for case in only:
        found = {(f["name"], f["program"]) for f in figures if f["setting"]["case"] == case}
        others = ("torch",) if case == "detection" else ("torch", "by hand")
        of_each = ("batches", "bandwidth", "cpu")
        assert found == {
            *((what, whose) for what in of_each for whose in ("gpuring", *others)),
            *(("batches beside", whose) for whose in others),
        }


def test_a_damaged_batch_is_found():
    case = (loader.Images(3, 4, 4), 4, 1, None)
    good = [torch.utils.data.default_collate([case[0][k] for k in range(40)])]
    batches = [tuple(tensor[k : k + 4] for tensor in good[0]) for k in range(0, 40, 4)]
    loader.verify(iter(batches), case)
    batches[3][0][0, 0, 0, 0] += 1
    with pytest.raises(RuntimeError, match="batch 3"):
        loader.verify(iter(batches), case)


def test_a_detection_batch_has_114_tensors():
    case = loader.cases(on_gpu=True)["detection"]
    samples = [case[0][k] for k in range(case[1])]
    leaves, _ = loader.tree_flatten(case[3](samples))
    assert len(leaves) == 114
