"""Three videos decoded in parallel, one motion detector for all, a recorder, a page to watch it.

python examples/video_pipeline.py [SECONDS]       writes seen0.mp4, seen1.mp4, seen2.mp4
needs av and pillow; PyNvVideoCodec to decode on a GPU, starlette and uvicorn for the page
"""

import io
import multiprocessing
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import av
import numpy as np

import gpuring
import gpuring.cli.demo

try:
    import cupy as xp

    xp.cuda.Device()  # raises without a GPU
    device = "cuda"
except Exception:
    xp = np
    device = "host"

CLIP = str(Path(gpuring.cli.demo.__file__).with_name("bigbuckbunny.mp4"))
STREAMS, FPS, W, H = 3, 25, 1280, 720
NV12 = {"y": ((H, W), "u1"), "uv": ((H // 2, W // 2, 2), "u1")}
META = [("frame", "i8"), ("stamp_ns", "i8")]


def nvdec():
    """NV12 pictures, decoded by the GPU into its own memory."""
    from PyNvVideoCodec import SimpleDecoder

    decoder = SimpleDecoder(CLIP, use_device_memory=True)
    return (xp.from_dlpack(decoder[n]) for n in range(len(decoder)))


def pyav():
    with av.open(CLIP) as file:
        for frame in file.decode(video=0):
            yield frame.reformat(format="nv12").to_ndarray()


def decode(ring, decoder, count):
    """As a camera: the clip again and again, 25 pictures a second."""
    with ring, ring.producer() as producer:
        start, sent = time.monotonic(), 0
        while sent < count:
            for n, picture in zip(range(count - sent), decoder(), strict=False):
                time.sleep(max(0, start + sent / FPS - time.monotonic()))
                with producer.claim() as slot:
                    slot.meta["frame"], slot.meta["stamp_ns"] = n, time.monotonic_ns()
                    slot.copy_from(picture[:H], field="y")
                    slot.copy_from(picture[H:].reshape(H // 2, W // 2, 2), field="uv")
                sent += 1


def served(consumers):
    """(which, slot) of several rings as frames come, until all rings have ended."""
    waiting = list(consumers)
    while waiting:
        for each in gpuring.select(waiting):
            with suppress(gpuring.RingTimeout):  # on a GPU the frame may need a moment more
                try:
                    yield consumers.index(each), each.acquire(0.005)
                except gpuring.EndOfStream:
                    waiting.remove(each)


def motion(xp, before, now):
    """Left, top, right, bottom of what has changed, to 4 pixels; zeros if nothing has."""
    before, now = before[::4, ::4], now[::4, ::4]
    changed = xp.maximum(before, now) - xp.minimum(before, now) > 24
    across, down = changed.any(axis=0), changed.any(axis=1)
    right, bottom = W // 4 - across[::-1].argmax(), H // 4 - down[::-1].argmax()
    return 4 * xp.stack([across.argmax(), down.argmax(), right, bottom]) * changed.any()


def frame_of(box, y):
    """`y` with a white frame around the box; on a GPU nobody waits to learn where it is."""
    left, top, right, bottom = box
    column, row = xp.arange(W), xp.arange(H)[:, None]
    beside = xp.minimum(abs(column - left), abs(column - right)) < 2
    above = xp.minimum(abs(row - top), abs(row - bottom)) < 2
    beside, above = beside & (top <= row) & (row <= bottom), above & (left <= column)
    return xp.where(beside | above & (column <= right), 235, y)


def detect(cams, seens):
    """One for all streams. It holds each stream's last frame until the next one has come."""
    producers, before = [seen.producer() for seen in seens], {}
    for which, slot in served([cam.consumer("detector") for cam in cams]):
        last = before.get(which, slot)
        with producers[which].claim() as seen:
            seen["box"][:] = motion(xp, last["y"], slot["y"])
            seen["y"][:] = frame_of(seen["box"], slot["y"])
            seen["uv"][:] = slot["uv"]
            for name in slot.meta.dtype.names:
                seen.meta[name] = slot.meta[name]
        if last is not slot:
            last.release()
        before[which] = slot


def on_host(array):
    return array if device == "host" else array.get()


def picture(slot):
    y, uv = on_host(slot["y"]), on_host(slot["uv"])
    return av.VideoFrame.from_ndarray(np.concatenate([y, uv.reshape(H // 2, W)]), "nv12")


def record(seens, count):
    """Encodes every frame, and holds every box to that of a second decode of the clip."""
    files = [av.open(f"seen{k}.mp4", "w") for k in range(STREAMS)]
    size = {"width": W, "height": H, "pix_fmt": "yuv420p", "options": {"preset": "ultrafast"}}
    videos = [file.add_stream("libx264", rate=FPS, **size) for file in files]
    clip, ages_ms, boxes = [each[:H] for each in pyav()], [], [[] for _ in seens]
    for which, slot in served([seen.consumer("recorder") for seen in seens]):
        with slot:
            files[which].mux(videos[which].encode(picture(slot)))
            boxes[which].append((int(slot.meta["frame"]), *on_host(slot["box"]).tolist()))
            ages_ms.append((time.monotonic_ns() - slot.meta["stamp_ns"]) / 1e6)
    for file, video, found in zip(files, videos, boxes, strict=True):
        file.mux(video.encode())
        file.close()
        assert [n for n, *_ in found] == [n % len(clip) for n in range(count)], "frames are missing"
        for n, *box in found[1:]:
            assert box == motion(np, clip[n - 1], clip[n]).tolist(), f"wrong box in frame {n}"
    age = "p50 {:.0f}, p99 {:.0f} ms".format(*np.percentile(ages_ms, [50, 99]))
    print(f"recorder  {len(ages_ms)} frames in {STREAMS} files, each box right; age {age}")


def jpegs(ring):
    with ring.consumer(lossless=False) as frames, suppress(gpuring.EndOfStream):
        while True:
            with frames.latest() as slot:
                image, jpeg = picture(slot).to_image(), io.BytesIO()
            image.save(jpeg, "JPEG")
            yield b"--next\r\nContent-Type: image/jpeg\r\n\r\n%b\r\n" % jpeg.getvalue()


def view(seens, listening):
    """A page with all streams, for any number of browsers; each takes the newest frames."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, StreamingResponse
    from starlette.routing import Route

    def page(_):
        return HTMLResponse("".join(f"<img src=/{k} width=32%> " for k in range(STREAMS)))

    def stream(request):
        kind = "multipart/x-mixed-replace; boundary=next"
        return StreamingResponse(jpegs(seens[request.path_params["k"]]), media_type=kind)

    app = Starlette(routes=[Route("/", page), Route("/{k:int}", stream)])
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])


def parts_to_use():
    """The best decoder there is, whether there is a page, and a line that says what is not."""
    decoder, missing = pyav, []
    if device == "host":
        missing.append("no GPU here, so this runs on host memory with NumPy, and PyAV decodes")
    else:
        try:
            next(nvdec())
            decoder = nvdec
        except Exception as why:
            missing.append(f"no NVDEC here ({str(why).splitlines()[0]}), so PyAV decodes")
    has_page = all(map(find_spec, ("starlette", "uvicorn")))
    if not has_page:
        missing.append("no page: starlette or uvicorn is not installed")
    return decoder, has_page, "; ".join(missing) or "NVDEC decodes"


if __name__ == "__main__":
    decoder, has_page, line = parts_to_use()
    print(line, flush=True)
    count = int(float(*sys.argv[1:] or [10]) * FPS)
    process = partial(multiprocessing.get_context("spawn").Process, daemon=True)
    common = {"slots": 8, "meta": META, "device": device}
    cams = [gpuring.create(f"cam{k}", fields=NV12, **common) for k in range(STREAMS)]
    seen = {**NV12, "box": (4, "i8")}
    seens = [gpuring.create(f"seen{k}", fields=seen, **common) for k in range(STREAMS)]
    detector = process(target=detect, args=(cams, seens))
    recorder = process(target=record, args=(seens, count))
    decoders = [process(target=decode, args=(cam, decoder, count)) for cam in cams]
    detector.start(), recorder.start()
    if has_page:
        listening = socket.create_server(("127.0.0.1", 0))
        process(target=view, args=(seens, listening)).start()
        print(f"page      http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    readers = [ring.stats().subscriptions for ring in (*cams, *seens)]
    while not all(any(each.lossless for each in ring) for ring in readers):
        assert detector.is_alive(), "the detector has died"
        assert recorder.is_alive(), "the recorder has died"
        time.sleep(0.01)  # nobody shall miss the first frame
        readers = [ring.stats().subscriptions for ring in (*cams, *seens)]
    for each in decoders:
        each.start()
    crew = (*decoders, detector, recorder)
    for each in crew:
        each.join()
    sys.exit(any(each.exitcode for each in crew))
