"""Three videos decoded in parallel, one motion detector for all, a recorder, a page to watch it.

python examples/video_pipeline.py [SECONDS]       writes seen.mp4; pip install 'gpuring[examples]'
"""

import io
import multiprocessing
import socket
import sys
import time
from contextlib import suppress
from itertools import islice

import av
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, StreamingResponse
from starlette.routing import Route
from torch.nn.functional import avg_pool2d

import gpuring
from gpuring.cli.demo.clip import SHIPPED as CLIP

STREAMS, FPS, W, H, CELL = 3, 25, 1280, 720, 16
NV12 = {"y": ((H, W), "u1"), "uv": ((H // 2, W // 2, 2), "u1")}
MOVED = {"moved": ((1, H // CELL, W // CELL), "?")}
torch.set_num_threads(1)  # six processes share the cores


def nvdec(stream):
    """The clip again and again, decoded on a GPU; a picture is valid until the next."""
    from PyNvVideoCodec import SimpleDecoder

    while True:
        yield from map(torch.from_dlpack, SimpleDecoder(str(CLIP), cuda_stream=stream.cuda_stream))


def pyav(_=None):
    while True:
        with av.open(str(CLIP)) as file:
            for frame in file.decode(video=0):
                yield torch.from_numpy(frame.to_ndarray(format="nv12"))


def decode(ring, decoder, count, ready):
    """As a camera, 25 pictures a second."""
    stream = torch.cuda.Stream() if ring.memory == "cuda" else None  # NVDEC's and the copies'
    with ring, ring.producer() as producer, torch.cuda.stream(stream):
        ready.wait(60)
        start = time.monotonic()
        for n, picture in enumerate(islice(decoder(stream), count)):
            time.sleep(max(0, start + n / FPS - time.monotonic()))
            with producer.claim(stream=stream) as slot:
                slot.meta["stamp_ns"] = time.monotonic_ns()
                slot.copy_from(picture[:H], field="y")
                slot.copy_from(picture[H:].view(H // 2, W // 2, 2), field="uv")


def detect(cams, seens, ready):
    """One for all streams, with whichever has a frame.  It darkens the cells that do not move."""
    streams = {cam.consumer(): seen.producer() for cam, seen in zip(cams, seens, strict=True)}
    last = {}
    ready.wait(60)
    while streams:
        for frames in gpuring.select(streams):
            try:
                slot = frames.acquire()  # who is ready has a frame, or is at its end
            except gpuring.EndOfStream:
                streams.pop(frames).close()
                continue
            with slot, streams[frames].claim() as seen:
                y = torch.from_dlpack(slot.field("y"))
                cells = avg_pool2d(y[None].float(), CELL)
                moved = (cells - last.get(frames, cells)).abs() > 4
                last[frames] = cells
                tiles = y.view(H // CELL, CELL, W // CELL, CELL)
                lit = torch.where(moved[0, :, None, :, None], tiles, tiles >> 1).view(H, W)
                seen.meta["stamp_ns"] = slot.meta["stamp_ns"]
                seen.copy_from(lit, field="y")
                seen.copy_from(slot.field("uv"), field="uv")
                seen.copy_from(moved, field="moved")


def picture(*slots):
    planes = [torch.from_dlpack(slot.field(name)).view(-1, W) for name in NV12 for slot in slots]
    return av.VideoFrame.from_ndarray(torch.cat(planes).cpu().numpy(), "nv12")


def record(seens, count, ready):
    """All streams, below each other; and holds what was detected to a second decode of the clip."""
    consumers, found, ages_ms = [seen.consumer() for seen in seens], [], []
    ready.wait(60)
    with av.open("seen.mp4", "w") as file:
        video = file.add_stream("libx264", FPS, {"preset": "ultrafast"})
        video.width, video.height = W, STREAMS * H
        for slots in zip(*consumers, strict=True):
            file.mux(video.encode(picture(*slots)))
            found.append(torch.cat([torch.from_dlpack(slot.field("moved")) for slot in slots]))
            ages_ms += [(time.monotonic_ns() - slot.meta["stamp_ns"]) / 1e6 for slot in slots]
        file.mux(video.encode())
    cells = torch.stack([avg_pool2d(y[None, :H].float(), CELL) for y in islice(pyav(), count)])
    moved = cells.diff(dim=0, prepend=cells[:1]).abs() > 4
    assert (torch.stack(found).cpu() == moved).all(), "the detector saw something else"
    p50, p99 = (torch.tensor(ages_ms).quantile(q) for q in (0.5, 0.99))
    print(f"recorder  {len(ages_ms)} frames, each right; age p50 {p50:.0f}, p99 {p99:.0f} ms")


def view(seens, listening):
    """A page with all streams, for any number of browsers; each takes the newest frames."""

    def jpegs(ring):
        with ring.consumer(lossless=False) as frames, suppress(gpuring.EndOfStream):
            while True:
                jpeg = io.BytesIO()
                with frames.latest() as slot:
                    picture(slot).to_image().save(jpeg, "JPEG")
                yield b"--next\r\nContent-Type: image/jpeg\r\n\r\n%b\r\n" % jpeg.getvalue()

    def stream(request):
        kind = "multipart/x-mixed-replace; boundary=next"
        return StreamingResponse(jpegs(seens[request.path_params["k"]]), media_type=kind)

    page = HTMLResponse("".join(f"<img src=/{k} width=32%> " for k in range(STREAMS)))
    app = Starlette(routes=[Route("/", page), Route("/{k:int}", stream)])
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "host"
    decoder, line = pyav, "no GPU here, so this runs on host memory, and PyAV decodes"
    if device == "cuda":
        try:
            next(nvdec(torch.cuda.Stream()))
            decoder, line = nvdec, "NVDEC decodes"
        except Exception as why:
            line = f"no NVDEC here ({why!r:.120}), so PyAV decodes"
    print(line, flush=True)
    count = int(float(*sys.argv[1:] or [10]) * FPS)
    spec = {"slots": 8, "meta": [("stamp_ns", "i8")], "device": device}
    cams = [gpuring.create(f"cam{k}", fields=NV12, **spec) for k in range(STREAMS)]
    seens = [gpuring.create(f"seen{k}", fields=NV12 | MOVED, **spec) for k in range(STREAMS)]
    spawn, listening = multiprocessing.get_context("spawn"), socket.create_server(("127.0.0.1", 0))
    print(f"page      http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    ready = spawn.Barrier(STREAMS + 2)  # nobody shall miss the first frame
    decoders = [(decode, cam, decoder, count, ready) for cam in cams]
    for role, *args in ((view, seens, listening), (detect, cams, seens, ready), *decoders):
        spawn.Process(target=role, args=args, daemon=True).start()
    record(seens, count, ready)
