"""Batches that two loaders have given."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.torch import datasets


def same(a: Any, b: Any) -> bool:
    """Whether two batches have the same types, values, dtypes and strides."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if a.layout is not torch.strided:
            return a.layout is b.layout and same(a.to_dense(), b.to_dense())
        return (
            (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
            and a.is_contiguous() == b.is_contiguous()
            and torch.equal(a, b)
        )
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (datasets.Box, datasets.Record)):
        return same(vars(a), vars(b))
    return bool(a == b)
