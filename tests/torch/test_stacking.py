"""Samples that are stacked into a slot are as torch stacks them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from gpuring.torch import stacking

PLAIN = torch.arange(3 * 11 * 7, dtype=torch.float32).reshape(3, 11, 7)
KINDS = {
    "plain": PLAIN,
    "bytes": PLAIN.to(torch.uint8),
    "brain": PLAIN.to(torch.bfloat16),
    "transposed": PLAIN.transpose(0, 2),
    "gaps": PLAIN[:, ::2],
    "expanded": PLAIN[:1].expand(3, 11, 7),
    "conjugate": torch.complex(PLAIN, PLAIN).conj(),
    "negative": torch.complex(PLAIN, PLAIN).conj().imag,
    "negative without gaps": torch._neg_view(PLAIN),
    "scalar": torch.tensor(3.0),
    "empty": torch.zeros(0, 3),
}


@pytest.fixture(params=[0, stacking.STREAMED_NBYTES], ids=["past the caches", "by torch"])
def limit(request, monkeypatch):
    monkeypatch.setattr(stacking, "STREAMED_NBYTES", request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_stacked_as_torch_stacks_them(kind, limit):
    samples = [KINDS[kind] + k if kind == "plain" else KINDS[kind] for k in range(5)]
    expected = torch.stack(samples)
    assert stacking.alike(samples)
    stacked = stacking.stack(samples, torch.empty(expected.shape, dtype=expected.dtype))
    assert torch.equal(stacked, expected)


@pytest.mark.parametrize("odd", ["dtype", "gradient", "parameter", "array"])
def test_samples_of_other_kinds_are_left_to_torch(odd):
    others = {
        "dtype": PLAIN.double(),
        "gradient": PLAIN.clone().requires_grad_(),
        "parameter": torch.nn.Parameter(PLAIN, requires_grad=False),
        "array": PLAIN.numpy(),
    }
    for samples in ([PLAIN, others[odd]], [others[odd], PLAIN]):
        assert not stacking.alike(samples)


def test_shapes_that_differ_are_torchs_error(limit):
    samples = [PLAIN, PLAIN[:2]]
    with pytest.raises(RuntimeError) as theirs:
        torch.stack(samples)
    with pytest.raises(RuntimeError) as ours:
        stacking.stack(samples, torch.empty(2, *PLAIN.shape))
    assert str(ours.value) == str(theirs.value)
