"""The page of video_pipeline.py: what the cameras show, how many pictures a second, and how old."""

import asyncio
import contextlib
import io
import sys
import time
from collections import deque

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
    from starlette.routing import Route
except ImportError as missing:
    sys.exit(f"{missing}: pip install 'gpuring[examples]'")
from video_pipeline import CAMERAS, FPS, OVER, H, W, picture

import gpuring

PAGE = """<!doctype html><meta charset=utf-8><title>Video pipeline</title>
<style>body{font:16px sans-serif;margin:2em}
figure{display:inline-block;vertical-align:top;width:31%%;margin:0 1%% 0 0} img{width:100%%}</style>
<h1>Three cameras, one motion detector</h1><p>What does not move is dark.</p>%s<script>
setInterval(async () => { const figures = await (await fetch("figures")).json();
  figures.forEach((text, k) => document.getElementById(k).textContent = text) }, 500)</script>"""
FIGURE = """<figure><img src={0} alt="camera {0}">
<figcaption>Camera {0}: {1}<br><b id={0}>…</b></figcaption></figure>"""


def view(seens, listening):
    """A page for any number of browsers, with one reader for each camera."""
    figures, fresh = ["no signal"] * len(seens), []  # fresh: futures of the next pictures

    def part(slot):
        jpeg = io.BytesIO()
        picture(slot).to_image(width=W // 2, height=H // 2).save(jpeg, "JPEG")
        return b"Content-Type: image/jpeg\r\n\r\n%b\r\n--next\r\n" % jpeg.getvalue()

    async def watch(k):
        taken_s = deque(maxlen=FPS)
        with (
            seens[k].consumer(lossless=False) as frames,
            contextlib.suppress(*OVER, StopAsyncIteration),
        ):
            newest = gpuring.align([frames], timeout=0.5)
            while True:
                try:
                    (slot,) = await anext(newest)
                    taken_s.append(time.monotonic())
                    rate = (len(taken_s) - 1) / max(taken_s[-1] - taken_s[0], 1e-9)
                    age_ms = (time.monotonic_ns() - slot.meta["stamp_ns"]) / 1e6
                    figures[k] = f"{rate:.0f} frames/s, {age_ms:.0f} ms old"
                except gpuring.RingTimeout:
                    taken_s.clear()
                    slot, figures[k] = None, "no signal"
                waited_for, fresh[k] = fresh[k], asyncio.get_running_loop().create_future()
                waited_for.set_result(part(slot))
        figures[k] = "no signal: it has ended"
        fresh[k].set_result(None)

    @contextlib.asynccontextmanager
    async def lifespan(_):
        fresh[:] = [asyncio.get_running_loop().create_future() for _ in seens]
        tasks = [asyncio.create_task(watch(k)) for k in range(len(seens))]
        yield
        await asyncio.gather(*tasks)

    async def parts(k):
        yield b"--next\r\n"
        while picture := await asyncio.shield(fresh[k]):
            yield picture
        yield part(None)

    def stream(request):
        kind = "multipart/x-mixed-replace; boundary=next"
        return StreamingResponse(parts(request.path_params["k"]), media_type=kind)

    page = PAGE % "".join(FIGURE.format(*each) for each in enumerate(CAMERAS))
    routes = [Route("/", lambda _: HTMLResponse(page)), Route("/{k:int}", stream)]
    routes += [Route("/figures", lambda _: JSONResponse(figures))]
    app = Starlette(routes=routes, lifespan=lifespan)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])


if __name__ == "__main__":
    raise SystemExit("usage: python examples/video_pipeline.py [SECONDS]")
