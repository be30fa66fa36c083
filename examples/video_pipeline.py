"""Three cameras, one motion detector for all of them, a recorder, and a page to watch them.

python examples/video_pipeline.py [SECONDS]       pip install 'gpuring[examples]'

It writes seen.mp4.  The cameras are the clip of `gpuring demo`, decoded in three processes.  Stop
one (kill -STOP), continue it (kill -CONT), kill it (kill -9): the others go on.
"""

import argparse
import signal
import socket
import sys
import time
from fractions import Fraction
from functools import cache
from itertools import chain, islice

from crew import SPAWN, start, together, until

if __name__ == "__main__":  # first, because --help needs no package
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=float, default=10, help="how long it runs (10)")
    seconds = parser.parse_args().seconds

try:
    import av
    import numpy as np
    import torch
    from PIL import Image, ImageDraw
    from torch.nn.functional import avg_pool2d

    import gpuring
    from gpuring.cli.demo.clip import SHIPPED as CLIP
except ImportError as missing:
    sys.exit(f"{missing}: pip install 'gpuring[examples]'")

FPS, W, H, CELL = 25, 1280, 720, 16
AHEAD, CAMERAS = 44, ("as it is", "mirrored, 44 frames ahead", "colours swapped, 88 frames ahead")
NV12 = {"y": ((H, W), "u1"), "uv": ((H // 2, W // 2, 2), "u1")}
MOVED = {"moved": ((1, H // CELL, W // CELL), "?")}
META = [("pts", "i8"), ("stamp_ns", "i8")]  # number of the picture, and when it was taken
OVER = (gpuring.EndOfStream, gpuring.PeerLost)
torch.set_num_threads(1)  # six processes share the cores
gpuring.exit_on_sigterm()  # also in the processes that it spawns


def nvdec(stream):
    """The clip again and again, decoded on a GPU; a picture is valid until the next."""
    from PyNvVideoCodec import SimpleDecoder

    while True:
        yield from map(torch.from_dlpack, SimpleDecoder(str(CLIP), cuda_stream=stream.cuda_stream))


def clip():
    with av.open(str(CLIP)) as file:
        for frame in file.decode(video=0):
            yield torch.from_numpy(frame.to_ndarray(format="nv12"))


def pyav(_):
    while True:
        yield from clip()


def camera(k, ring, decoder, count, ready):
    """25 pictures a second.  Each camera shows the clip in a way of its own."""
    stream = torch.cuda.Stream() if ring.memory != "host" else None  # NVDEC's and the copies'
    with ring, ring.producer() as producer, torch.cuda.stream(stream):
        pictures = islice(decoder(stream), AHEAD * k, AHEAD * k + count)
        first = next(pictures)  # decodes what it is ahead by, so that all cameras begin together
        ready.wait(120)
        start = time.monotonic()
        for n, picture in enumerate(chain([first], pictures)):
            y, uv = picture[:H], picture[H:].view(H // 2, W // 2, 2)
            if k == 1:
                y, uv = y.flip(1), uv.flip(1)
            time.sleep(max(0, start + n / FPS - time.monotonic()))
            with producer.claim(stream=stream) as slot:
                slot.meta["pts"], slot.meta["stamp_ns"] = n, time.monotonic_ns()
                slot.copy_from(y, field="y")
                slot.copy_from(uv.flip(2) if k == 2 else uv, field="uv")


def detect(cams, seens, ready):
    """Takes any picture of any camera that is there, and darkens the cells that do not move."""
    outputs = {cam.consumer(): seen.producer() for cam, seen in zip(cams, seens, strict=True)}
    last = {}
    ready.wait(120)
    while outputs:
        for frames in gpuring.select(outputs):
            try:
                slot = frames.acquire()  # this consumer has a frame, or its stream is over
            except OVER:
                outputs.pop(frames).close()
                continue
            with slot, outputs[frames].claim() as seen:
                y = torch.from_dlpack(slot.field("y"))
                cells = avg_pool2d(y[None].float(), CELL)
                moved = (cells - last.get(frames, cells)).abs() > 4
                last[frames] = cells
                tiles = y.view(H // CELL, CELL, W // CELL, CELL)
                lit = torch.where(moved[0, :, None, :, None], tiles, tiles >> 1).view(H, W)
                seen.meta["pts"], seen.meta["stamp_ns"] = slot.meta.item()
                seen.copy_from(lit, field="y")
                seen.copy_from(slot.field("uv"), field="uv")
                seen.copy_from(moved, field="moved")


@cache
def no_signal():
    """The planes of a picture that says so."""
    card = Image.new("L", (W, H), 32)
    ImageDraw.Draw(card).text((W / 2, H / 2), "no signal", 235, anchor="mm", font_size=120)
    return torch.from_numpy(np.array(card)), torch.full((H // 2, W), 128, dtype=torch.uint8)


def picture(*slots):
    """The planes of the picture below each other, on the host."""
    planes = [no_signal() if slot is None else map(slot.field, NV12) for slot in slots]
    planes = [torch.from_dlpack(each) for each in chain(*zip(*planes, strict=True))]
    whole = torch.cat([plane.view(-1, W).cpu() for plane in planes])
    return av.VideoFrame.from_ndarray(whole.numpy(), "nv12")


def record(seens, crew, ready):
    """Records all cameras below each other, by the numbers of their pictures.  What is missing has
    no signal.  What comes late is not recorded, but checked.  Returns what was detected."""
    consumers = [seen.consumer() for seen in seens]
    found, ages_ms, absent, late, written = [{} for _ in seens], [], [0] * len(seens), 0, -1
    until(lambda: ready.n_waiting == len(crew), crew)
    ready.wait(120)
    with av.open("seen.mp4", "w") as file:
        video = file.add_stream("libx264", FPS, {"preset": "ultrafast"})
        video.width, video.height = W, len(seens) * H
        for slots in gpuring.align(consumers, by="pts", partial=True):
            pts = next(int(slot.meta["pts"]) for slot in slots if slot)
            if pts > written:
                image, written = picture(*slots), pts
                image.pts, image.time_base = pts, Fraction(1, FPS)
                file.mux(video.encode(image))
                absent = [n + (slot is None) for n, slot in zip(absent, slots, strict=True)]
            else:
                late += len(slots) - slots.count(None)
            for moves, slot in zip(found, slots, strict=True):
                if slot:
                    moves[pts] = torch.from_dlpack(slot.field("moved")).clone()
                    ages_ms.append((time.monotonic_ns() - slot.meta["stamp_ns"]) / 1e6)
        file.mux(video.encode())
    check(found)
    p50, p99 = (torch.tensor(ages_ms).quantile(q) for q in (0.5, 0.99))
    print(f"recorder  {len(ages_ms)} frames, each right; age p50 {p50:.0f}, p99 {p99:.0f} ms")
    print(f"          no signal in {absent} pictures of cameras 0, 1, 2; {late} frames came late")
    return [len(moves) for moves in found]


def check(found):
    """Compares what was detected with a second decode of the clip."""
    cells = torch.stack([avg_pool2d(y[None, :H].float(), CELL) for y in clip()])
    expected = cells.diff(dim=0, prepend=cells[-1:]).abs() > 4
    for k, moves in enumerate(found):
        assert [*moves] == [*range(len(moves))], f"camera {k}: frames are missing or out of order"
        for pts, moved in moves.items():
            right = expected[(AHEAD * k + pts) % len(cells)] & (pts > 0)
            right = right.flip(2) if k == 1 else right
            assert (moved.cpu() == right).all(), "something else was seen"


def main():
    count = int(seconds * FPS)
    if count < 1:
        parser.error("seconds must be more than 0")
    device = "cuda" if torch.cuda.is_available() else "host"
    decoder, line = pyav, "no GPU here, so this runs on host memory, and PyAV decodes"
    if device == "cuda":
        try:
            next(nvdec(torch.cuda.Stream()))
            decoder, line = nvdec, "NVDEC decodes"
        except Exception as why:
            line = f"no NVDEC here ({why!r:.120}), so PyAV decodes"
    print(line, flush=True)
    import video_page  # here, because it imports this file

    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # Ctrl-C leaves no traceback
    spec, ks = {"slots": 8, "meta": META, "device": device}, range(len(CAMERAS))
    cams = [gpuring.create(f"cam{k}", fields=NV12, **spec) for k in ks]
    seens = [gpuring.create(f"seen{k}", fields=NV12 | MOVED, **spec) for k in ks]
    listening = socket.create_server(("127.0.0.1", 0))
    ready = SPAWN.Barrier(len(CAMERAS) + 2)  # nobody shall miss the first frame
    roles = [(f"camera {k}", camera, k, cams[k], decoder, count, ready) for k in ks]
    roles += [("detector", detect, cams, seens, ready)]
    roles += [("page", video_page.view, seens, listening)]
    with together():
        crew = [start(*role) for role in roles]
        print("cameras  ", *(each.pid for each in crew[: len(CAMERAS)]))
        print(f"page      http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        for k, frames in enumerate(record(seens, crew[:-1], ready)):
            crew[k].join()
            assert crew[k].exitcode or frames == count, f"of camera {k} frames are missing"


if __name__ == "__main__":
    main()
