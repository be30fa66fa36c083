"""What must be so of a bridge, of all that the near producer and the far reader wrote down.

P   the frames that the producer said that it had published
p   those that it may have published: it was killed before it could say so
A   the frames that a reader had
"""

from __future__ import annotations

import numpy as np

FEW = 9
"""So many culprits are named."""


def judge(near: np.ndarray, far: np.ndarray) -> list[str]:
    """Returns what is wrong with a lossless bridge.  `near` and `far` are of dtype `roles.ROW`."""
    said, may = near[near["mark"] == b"P"], near[near["mark"] == b"p"]
    had = far[far["mark"] == b"A"]
    first = had[~had["again"]]
    wrong = []

    def expect(culprits: np.ndarray, what: str) -> None:
        if len(culprits):
            named = ", ".join(map(str, culprits[:FEW].tolist()))
            wrong.append(f"{len(culprits)} frames {what}: {named}{' …' * (len(culprits) > FEW)}")

    expect(np.setdiff1d(said["k"], had["k"]), "were published and never arrived")
    expect(np.setdiff1d(had["k"], may["k"]), "arrived and were never published")
    expect(_twice(first["k"]), "arrived twice")
    expect(had["k"][1:][np.diff(had["k"]) < 0], "arrived after later ones")
    expect(had["k"][1:][np.diff(had["seq"]) < 0], "have a far sequence below the one before")
    by_k = may[np.argsort(may["k"], kind="stable")]
    known = had[np.isin(had["k"], by_k["k"])]
    at = np.searchsorted(by_k["k"], known["k"])
    expect(known["k"][by_k["seq"][at] != known["origin"]], "name another near sequence as origin")
    # A void sequence may count as lost when an exporter begins again: its slot may have a later
    # one by then.
    void = np.setdiff1d(may["k"], np.union1d(said["k"], had["k"]))
    passed = np.diff(np.searchsorted(void, had["k"]), prepend=0)
    expect(had["k"][had["lost"] > passed], "say that frames before them were lost")
    return wrong


def judge_lossy(near: np.ndarray, far: np.ndarray) -> list[str]:
    """The same of a bridge that may lose frames, where nobody is killed.  `lost` says exactly how
    many frames are missing between two frames of one reader.  No frame is late, doubled or
    invented.  The near producer has never waited."""
    had = far[far["mark"] == b"A"]
    told = [
        each
        for each in judge(near, far)
        if "never arrived" not in each and "before them were lost" not in each
    ]
    if waits := int((near["mark"] == b"F").sum()):
        told.append(f"the near producer had to wait {waits} times")
    missing = np.diff(had["origin"]) - 1
    lies = had["k"][1:][missing != had["lost"][1:]]
    if len(lies):
        told.append(f"{len(lies)} frames say another number of lost ones: {lies[:FEW].tolist()}")
    return told


def _twice(numbers: np.ndarray) -> np.ndarray:
    values, times = np.unique(numbers, return_counts=True)
    return np.asarray(values[times > 1])
