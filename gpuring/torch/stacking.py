"""Samples are stacked into a slot.

Nothing here has a loop in Python over samples, which may be many and small.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from gpuring.native.streamed import gather
from gpuring.torch.parcel import is_laid

STREAMED_NBYTES = 4 << 20
"""A tensor of so many bytes goes past the caches: they would not keep it until it is read."""

_dtype, _shape = operator.attrgetter("dtype"), operator.attrgetter("shape")
_requires_grad = operator.attrgetter("requires_grad")
_is_plain = operator.attrgetter("is_cpu", "layout", "is_nested")


def alike(samples: Any) -> bool:
    """Whether torch.stack(out=) stacks them as torch.stack does.  If their shapes, layouts or
    devices differ, both raise."""
    return (
        is_laid(samples[0])
        and {*map(type, samples)} == {torch.Tensor}
        and len({*map(_dtype, samples)}) == 1
        and not any(map(_requires_grad, samples))
    )


def stack(samples: Any, out: Any) -> torch.Tensor:
    """torch.stack(out=) of samples that are alike."""
    if out.nbytes >= STREAMED_NBYTES and _lie_plainly(samples):
        gather(out.data_ptr(), [*map(torch.Tensor.data_ptr, samples)], samples[0].nbytes)
        stacked: torch.Tensor = out
    else:
        stacked = torch.stack(samples, 0, out=out)
    return stacked


def fill(numbers: Any, out: Any) -> bool:
    """Writes numbers into a tensor, in less time than torch.tensor takes to make one of them.
    False: one is too large."""
    try:
        out.numpy()[:] = numbers
    except OverflowError:
        return False
    return True


def _lie_plainly(samples: Any) -> bool:
    """Whether the bytes of a sample are those of its elements in order."""
    return (
        len({*map(_shape, samples)}) == 1
        and {*map(_is_plain, samples)} == {(True, torch.strided, False)}
        and all(map(torch.Tensor.is_contiguous, samples))
        and not any(map(torch.Tensor.is_conj, samples))
        and not any(map(torch.Tensor.is_neg, samples))
    )
