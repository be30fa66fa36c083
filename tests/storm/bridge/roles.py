"""Processes beside a bridge: `python -m tests.storm.bridge.roles ROLE RING FOLDER`.

writer   publishes frames in bursts into the near ring, until FOLDER/finish is there
reader   reads each frame of the far ring once, to the end of the stream
anchor   is in the reader's subscription and takes nothing, so that the subscription outlives a
         reader that is killed
stranger sends rubbish to an exporter's port, and is given its address in place of a ring
seen     prints what `Ring.stats` says of who is in a ring, and ends
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import gpuring
from gpuring.bridge.network import wire
from tests.storm.bridge.rubbish import stream
from tests.storm.paper import Sheet, read

WORDS = 256
META = "k:i8,last:i8"
ROW = np.dtype([("mark", "S1"), ("again", "?"), ("k", "<i8"), ("seq", "<i8"), ("origin", "<i8"),
                ("lost", "<i8")])  # fmt: skip
MARKS = {
    "p": "is about to publish frame k as sequence seq",
    "P": "has published it",
    "F": "finds the near ring full, and waits",
    "A": "has frame k, and its content is right; seq is of the far ring, origin of the near one",
    "E": "the stream has ended",
    "L": "the last producer was lost",
}
NEAR, FAR = "near.rows", "far.rows"
_RAMP = np.arange(WORDS, dtype="u4")


def content(k: int) -> np.ndarray:
    """The content of a frame.  Frames have different sizes, and every word follows from the frame's
    number."""
    n = 1 + k * 7919 % WORDS
    return _RAMP[:n] * np.uint32(2 * k + 1 & 0xFFFFFFFF) + np.uint32(k & 0xFFFFFFFF)


def attached(name: str) -> gpuring.Ring:
    return gpuring.attach(name, timeout=120)


def writer(name: str, folder: Path) -> None:
    written, chance = read(folder / NEAR, row=ROW), random.Random(os.getpid())
    k = int(written["k"][written["mark"] == b"p"].max(initial=-1)) + 1
    sheet, over = Sheet(folder / NEAR, ROW), False
    with attached(name) as ring, ring.producer() as producer:
        while not over:
            over = (folder / "finish").exists()
            for _ in range(1 if over else chance.randrange(1, 400)):
                frame = content(k)
                try:
                    slot = producer.claim(0, shape=frame.shape)
                except gpuring.RingFull:
                    sheet("F", k=k)
                    slot = producer.claim(shape=frame.shape)
                with slot:
                    slot.array[...] = frame
                    slot.meta["k"], slot.meta["last"] = k, over
                    sheet("p", k=k, seq=slot.seq)
                    seq = slot.seq
                sheet("P", k=k, seq=seq)
                k += 1
            time.sleep(chance.random() * 0.03)


def reader(name: str, folder: Path) -> None:
    sheet, last = Sheet(folder / FAR, ROW), False
    with attached(name) as ring, ring.consumer("reader", start="oldest") as frames:
        while True:
            try:
                slot = frames.acquire(1)
            except gpuring.RingTimeout:
                continue
            except gpuring.PeerLost:
                sheet("L")
                time.sleep(0.01)  # the error comes again until there is another producer
                continue
            except gpuring.EndOfStream:
                sheet("E")
                if last or (folder / "finish").exists():  # the last frame may have been lost
                    return
                time.sleep(0.01)
                continue
            with slot:
                k, last = int(slot.meta["k"]), bool(slot.meta["last"])
                assert np.array_equal(slot.array, content(k)), f"frame {k} is wrong"
                sheet("A", k=k, seq=slot.seq, origin=slot.origin.seq, lost=slot.lost,
                      again=slot.redelivered)  # fmt: skip


def anchor(name: str, _folder: Path) -> None:
    with attached(name) as ring, ring.consumer("reader", start="oldest"):
        print("ready", flush=True)
        signal.pause()


def stranger(address: str, _folder: Path) -> None:
    chance, (host, _, port) = random.Random(os.getpid()), address.rpartition(":")
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1) as one:
            one.settimeout(0.2)
            one.sendall(stream(chance, wire.Ping("x")))
            while one.recv(1 << 16):
                pass
        time.sleep(0.02)


def seen(name: str, _folder: Path) -> None:
    with attached(name) as ring:
        stats = ring.stats()
    told: dict[str, Any] = {
        "subscriptions": [dataclasses.asdict(each) for each in stats.subscriptions],
        "peers": [dataclasses.asdict(peer) for peer in stats.peers],
        "reaps": stats.reaps,
        "epoch": stats.epoch,
    }
    print(json.dumps(told, default=str))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    globals()[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
