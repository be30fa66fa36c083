"""What must be so of one ring, of all that those who took part in it have written down.

published   P <= published <= p: what a producer said that it published, and what it may have
covered     each lossless subscription has every published frame from its start on, to the last
            one that it had, or to the end of the ring if it read to there
once        a lone consumer has each once, in order; of a shared subscription's members only
            those who were killed may have had a frame that another had, too
lost        what a lossy consumer missed between two frames is what `lost` says
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .writers import MOST_AT_ONCE

FOREVER = 1 << 62
SHARED = ("anchor", "jobs")
LOSSY = ("lossy", "newest")


@dataclass
class Books:
    """The books of one ring.  `killed` says of a process, by its number, whether SIGKILL ended
    it."""

    sheets: Mapping[str, np.ndarray]
    killed: Callable[[int], bool]
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def judge(self) -> list[str]:
        """Returns what is wrong.  `counts` says how much was checked."""
        written = [sheet for sheet in self.sheets.values() if (sheet["mark"] == b"p").any()]
        may = np.concatenate([sheet[sheet["mark"] == b"p"] for sheet in written] or [_nothing()])
        self._written(written, may)
        by_seq = may[np.argsort(may["seq"], kind="stable")]
        read = {who: sheet for who, sheet in self.sheets.items() if (sheet["mark"] == b"S").any()}
        seen = {who: self._seen(who, sheet, by_seq) for who, sheet in read.items()}
        said = [sheet["seq"][sheet["mark"] == b"P"] for sheet in written]
        surely = np.unique(
            np.concatenate([*said, *(rows["seq"] for rows in seen.values())] or [[]])
        )
        self.counts["published"] += len(surely)
        for who, rows in seen.items():
            role = who.split(".")[0].split("-")[0]
            self.counts[f"read by {role}"] += len(rows)
            if role in LOSSY:
                self._lossy(who, read[who], rows)
            elif role not in SHARED:
                loops = int((read[who]["mark"] == b"L").sum())
                self._covered(who, read[who], rows["seq"], rows["seq"], surely, loops)
                self._say(
                    bool((np.diff(rows["seq"]) > 0).all()), f"{who}: not once, or not in order"
                )
        # The last member of a subscription ends it, and the next one of its name may begin earlier.
        made = {who: int(_start(sheet)["k"]) for who, sheet in read.items()}
        for each in sorted(set(made.values())):
            members = [who for who in seen if who.startswith(SHARED) and made[who] == each]
            self._shared(members, read, seen, surely)
        return self.wrong

    def _say(self, well: bool, text: str) -> None:
        if not well:
            self.wrong.append(text)

    def _written(self, written: list[np.ndarray], may: np.ndarray) -> None:
        self._say(len(np.unique(may["seq"])) == len(may), "a sequence was claimed twice")
        for who, sheet in self.sheets.items():
            mine, done = (sheet[sheet["mark"] == mark] for mark in (b"p", b"P"))
            if not len(mine):
                continue
            self._say(bool((np.diff(mine["seq"]) > 0).all()), f"{who}: sequences do not rise")
            self._say(
                bool((mine["k"] == np.arange(len(mine))).all()), f"{who}: a number is missing"
            )
            self._say(bool(np.isin(done["seq"], mine["seq"]).all()), f"{who}: published unasked")
            cut = int((sheet["mark"] == b"I").sum()) + 1
            open_ = len(mine) - len(done)
            self._say(
                open_ <= cut * MOST_AT_ONCE, f"{who}: {open_} begun, and cut short {cut} times"
            )

    def _seen(self, who: str, sheet: np.ndarray, by_seq: np.ndarray) -> np.ndarray:
        """The frames that a reader had.  They must be what their producers wrote."""
        rows = sheet[np.isin(sheet["mark"], [b"A", b"a"])]
        at = np.searchsorted(by_seq["seq"], rows["seq"])
        known = at < len(by_seq)
        at[~known] = 0
        if len(by_seq):
            known &= by_seq["seq"][at] == rows["seq"]
            same = (by_seq["producer"][at] == rows["producer"]) & (by_seq["k"][at] == rows["k"])
            known &= same | (rows["mark"] == b"a")
        strange = rows[~known]["seq"]
        self._say(not len(strange), f"{who}: has frames {strange[:9]} that nobody published so")
        start = _start(sheet)["seq"]
        self._say(
            bool((rows["seq"] >= start).all()), f"{who}: frames from before its start {start}"
        )
        return rows

    def _covered(
        self, who: str, sheet: np.ndarray, had: np.ndarray, all_had: np.ndarray,
        surely: np.ndarray, loops: int,
    ) -> None:  # fmt: skip
        """`had` by itself, `all_had` by its subscription, of which `loops` were interrupted."""
        start = int(_start(sheet)["seq"])
        last = int(had.max()) if len(had) else start - 1
        if bool(sheet["lost"][sheet["mark"] == b"Z"].any()):
            last = FOREVER
            self.counts["read to the end"] += 1
        wanted = surely[(surely >= start) & (surely <= last)]
        missing = np.setdiff1d(wanted, all_had)
        self.counts["checked for gaps"] += len(wanted)
        self.counts["released by a loop"] += min(len(missing), loops)
        self._say(len(missing) <= loops, f"{who}: {len(missing)} frames missing, {missing[:9]} …")

    def _shared(
        self, members: list[str], read: dict[str, np.ndarray], seen: dict[str, np.ndarray],
        surely: np.ndarray,
    ) -> None:  # fmt: skip
        had = np.concatenate([seen[who]["seq"] for who in members] or [[]]).astype(np.int64)
        loops = sum(int((read[who]["mark"] == b"L").sum()) for who in members)
        for who in members:
            if who.startswith("anchor"):
                self._covered(who, read[who], np.zeros(0, "i8"), had, surely, loops)
        living = [who for who in members if not self.killed(int(who.split(".")[1]))]
        once = np.concatenate([seen[who]["seq"] for who in living] or [[]])
        seqs, times = np.unique(once, return_counts=True)
        twice = seqs[times > 1]
        self._say(not len(twice), f"jobs: frames {twice[:9]} were had twice, and nobody was killed")
        again = np.concatenate([seen[who] for who in members] or [_nothing()])
        self.counts["redelivered"] += int(again["again"].sum())
        if not any((read[who]["mark"] == b"I").any() for who in members):  # a give-back forgets it
            first, times = np.unique(again[~again["again"]]["seq"], return_counts=True)
            self._say(not (times > 1).any(), f"jobs: {first[times > 1][:9]} again, and not flagged")

    def _lossy(self, who: str, sheet: np.ndarray, rows: np.ndarray) -> None:
        start = _start(sheet)["seq"]
        gaps = np.diff(rows["seq"], prepend=start - 1)
        bad = rows[(gaps < 1) | (gaps - 1 != rows["lost"])]
        told = [(int(row["seq"]), int(row["lost"])) for row in bad[:5]]
        self._say(not told, f"{who}: lost is a lie at (sequence, lost) {told}, start {start}")
        self.counts["lost, and told"] += int(rows["lost"].sum())


def _start(sheet: np.ndarray) -> np.void:
    """The row that a peer writes when it has joined."""
    return sheet[sheet["mark"] == b"S"][0]


def _nothing() -> np.ndarray:
    from tests.storm.paper import ROW

    return np.zeros(0, ROW)
