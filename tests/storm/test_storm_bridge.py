"""The books of a bridge find faults, and balance after a short storm.

`python -m tests.storm bridge` is a long one, and `python -m tests.storm strangers` sends rubbish.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests import ROOT
from tests.helpers.commands import module
from tests.storm import harness
from tests.storm.bridge.books import judge, judge_lossy
from tests.storm.bridge.roles import ROW, content


def _near(*frames: tuple[bytes, int, int]) -> np.ndarray:
    return np.array([(mark, False, k, seq, 0, 0) for mark, k, seq in frames], ROW)


def _far(*frames: tuple[int, int, int, bool, int]) -> np.ndarray:
    return np.array(
        [(b"A", again, k, seq, origin, lost) for k, seq, origin, again, lost in frames], ROW
    )


NEAR = _near(
    (b"p", 0, 16), (b"P", 0, 16), (b"p", 1, 17), (b"p", 2, 19), (b"P", 2, 19), (b"p", 3, 20),
    (b"P", 3, 20),
)  # fmt: skip
A, B, C, D = ((0, 8, 16, False, 0), (1, 9, 17, False, 0), (2, 12, 19, False, 0),
              (3, 13, 20, False, 0))  # fmt: skip


@pytest.mark.parametrize(
    "far",
    [(A, B, C, D), (A, C, D), (A, B, (1, 9, 17, True, 0), C, D), (A, (2, 12, 19, False, 1), D)],
)
def test_books_that_balance(far):
    """The producer was killed while it published frame 1, which may have arrived or not."""
    assert judge(NEAR, _far(*far)) == []


@pytest.mark.parametrize(
    ("far", "wrong"),
    [
        ((A, B, D), "1 frames were published and never arrived: 2"),
        ((A, B, C, D, (4, 14, 21, False, 0)), "1 frames arrived and were never published: 4"),
        ((A, B, B, C, D), "1 frames arrived twice: 1"),
        ((A, C, (1, 13, 17, False, 0), (3, 14, 20, False, 0)), "1 frames arrived after later ones"),
        ((A, C, (3, 11, 20, False, 0)), "1 frames have a far sequence below the one before: 3"),
        ((A, C, (3, 13, 19, False, 0)), "1 frames name another near sequence as origin: 3"),
        ((A, (2, 12, 19, False, 2), D), "1 frames say that frames before them were lost: 2"),
        ((A, B, (2, 12, 19, False, 1), D), "1 frames say that frames before them were lost: 2"),
        ((A, C, (3, 13, 20, False, 1)), "1 frames say that frames before them were lost: 3"),
    ],
)
def test_books_that_do_not(far, wrong):
    (told,) = judge(NEAR, _far(*far))
    assert told.startswith(wrong)


def test_books_of_a_bridge_that_may_lose_frames():
    late = (3, 13, 20, False, 3)
    assert judge_lossy(NEAR, _far(A, late)) == []
    assert judge_lossy(NEAR, _far(A, (3, 13, 20, False, 2))) == [
        "1 frames say another number of lost ones: [3]"
    ]
    assert judge_lossy(NEAR, _far(A, late, late)) != []
    waited = np.concatenate([NEAR, _near((b"F", 3, 0))])
    assert judge_lossy(waited, _far(A, late)) == ["the near producer had to wait 1 times"]


def test_every_frame_tells_its_number():
    assert len({content(k).tobytes() for k in range(1000)}) == 1000


STORMS = {
    "lossless": ["--seconds=15", "--kills=12", "--frames=1500", "--every=80"],
    # Nobody is killed, so `lost` has to be exact.
    "lossy": ["--seconds=5", "--mbit=1", "--troubles", "lose", "--importer=--lossy"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORMS)
def test_the_books_balance_after_a_storm(kind):
    pytest.importorskip("zmq")
    options = ["--seed=1", *STORMS[kind]]
    ended = module("tests.storm", "bridge", *options, cwd=ROOT, timeout=120)
    said = ended.stdout + ended.stderr
    if ended.returncode == 2:
        pytest.skip(said.splitlines()[-1])
    assert ended.returncode == 0, said


@pytest.mark.slow
def test_no_bytes_from_the_network_end_a_worker():
    pytest.importorskip("zmq")
    from tests.storm.bridge.strangers import Strangers

    told = harness.storm(Strangers, seconds=6.0, seed=1).counts
    assert told["connections of strangers"] > 20
    assert told["messages for an exporter"] > 200
