"""What the demo computes agrees with its definitions.  A GPU gives the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuring.cli.demo import arithmetic
from gpuring.cli.demo.arrays import Arrays, NumPy, Torch

NUMPY = NumPy()


def test_checksum_sees_every_byte_and_their_order():
    # 105 bytes: 13 words and 1
    image = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)
    weight = arithmetic.weights(image.nbytes, NUMPY)
    sums = {int(arithmetic.checksum(image, weight, NUMPY)[0])}
    for at in range(image.nbytes):
        changed = image.copy()
        changed.reshape(-1)[at] ^= 128
        sums.add(int(arithmetic.checksum(changed, weight, NUMPY)[0]))
    for at in range(0, 96, 8):
        swapped = image.copy()
        flat = swapped.reshape(-1)
        flat[at : at + 16] = np.roll(flat[at : at + 16], 8)
        sums.add(int(arithmetic.checksum(swapped, weight, NUMPY)[0]))
    assert len(sums) == 1 + 105 + 12


def test_sobel_against_its_definition():
    y = np.random.default_rng(2).integers(0, 256, (6, 9), np.uint8)
    kernel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    want = np.empty((4, 7), int)
    for row in range(4):
        for column in range(7):
            window = y[row : row + 3, column : column + 3].astype(int)
            want[row, column] = abs((window * kernel).sum()) + abs((window * kernel.T).sum())
    assert np.array_equal(arithmetic.sobel(y, NUMPY), np.minimum(want, 255))


def test_frame_measure_against_its_definition():
    frames = np.random.default_rng(3).integers(0, 256, (2, 4, 6, 3), np.uint8)
    measure = arithmetic.FrameMeasure((4, 6, 3), NUMPY)
    rows = [measure(frame).tolist() for frame in frames]
    luma = [(frame.astype(int) @ (77, 150, 29) + 128) >> 8 for frame in frames]
    assert [row[:3] for row in rows] == frames.sum(axis=(1, 2), dtype=int).tolist()
    assert rows[0][arithmetic.MOTION] == 0
    assert rows[1][arithmetic.MOTION] == np.abs(luma[1] - luma[0]).sum()


def test_thumbnail_is_the_mean_of_boxes():
    image = np.arange(8 * 13, dtype=np.uint8).reshape(8, 13)
    small = arithmetic.thumbnail(image, 3, NUMPY)
    assert small.shape == (2, 3)
    assert small[1, 2] == image[4:8, 8:12].sum(dtype=int) // 16


def of_torch() -> Arrays:
    return Torch(pytest.importorskip("torch"), "cpu")


def of_torch_on_gpu() -> Arrays:
    return Torch(pytest.importorskip("torch"))


def of_cupy() -> Arrays:
    return NumPy(pytest.importorskip("cupy"))


@pytest.mark.parametrize(
    "other",
    [
        of_torch,
        pytest.param(of_torch_on_gpu, marks=pytest.mark.gpu),
        pytest.param(of_cupy, marks=pytest.mark.gpu),
    ],
)
def test_other_libraries_and_a_gpu_give_the_same_bits(other):
    shape = (37, 53, 3)  # an odd number of bytes
    frames = np.random.default_rng(4).integers(0, 256, (2, *shape), np.uint8)
    found: list[list[Any]] = []
    for kind in (NUMPY, other()):
        of_frame, of_edges = (
            arithmetic.FrameMeasure(shape, kind),
            arithmetic.EdgeMeasure(shape, kind),
        )
        results = []
        for frame in frames:
            image = kind.from_host(frame)
            edges, row = of_edges(image)
            results += [of_frame(image), row, edges, arithmetic.thumbnail(image, 20, kind)]
        found.append([kind.to_host(each) for each in results])
    for host, there in zip(*found, strict=True):
        assert host.dtype == there.dtype
        assert np.array_equal(host, there)
