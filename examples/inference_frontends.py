"""HTTP workers hand images to torch engines, which answer in batches, whichever of them is killed.

python examples/inference_frontends.py [SECONDS]       needs pillow, starlette, torch, uvicorn
inference_load.py asks, checks, and has the same workers and engines over queues to compare with.
"""

import argparse
import io
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress

from crew import start, undivided

if __name__ == "__main__":  # first, because --help needs no package
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=float, default=5, help="per measurement (5)")
    seconds = parser.parse_args().seconds
    if not seconds > 0:
        parser.error("seconds must be more than 0")

try:
    import numpy as np
    import uvicorn
    from PIL import Image
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    import gpuring
except ImportError as missing:
    sys.exit(f"{missing}: pip install 'gpuring[examples]'")

NAME, WORKERS, ENGINES = "classify", 2, 2
SIDE, CLASSES, SLOTS = 224, 10, 64
MAX_BATCH, MAX_WAIT_S, ROOM_S, PATIENCE_S = 8, 0.002, 10, 20
STATUS = {gpuring.RingFull: 503, gpuring.RingTimeout: 504, gpuring.PeerLost: 502}
gpuring.exit_on_sigterm()  # also in the processes that it spawns


def model():
    """Pixels (n, SIDE, SIDE, 3) to probabilities (n, CLASSES), the same in every process."""
    import torch  # not above: a worker has no use for it

    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32, nn = False, torch.nn
    net = nn.Sequential(nn.Conv2d(3, 16, 7, 4), nn.Tanh(), nn.Conv2d(16, 32, 7, 4), nn.Tanh())
    net.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, CLASSES, bias=False)])

    @torch.inference_mode()
    def classify(images):
        return (20 * net.to(images.device)(images.permute(0, 3, 1, 2) / 128 - 1)).softmax(1)

    return classify


def engine():
    import torch

    classify = model()
    with gpuring.serve(NAME, timeout=60) as server, suppress(gpuring.EndOfStream):
        while True:
            with server.take(MAX_BATCH, MAX_WAIT_S) as calls:
                images = torch.stack([torch.from_dlpack(call.slot) for call in calls])
                for call, scores in zip(calls, classify(images).cpu().numpy(), strict=True):
                    with call.answer() as slot:
                        slot.array[:], slot.meta["engine"] = scores, os.getpid()


def worker(listening):
    with gpuring.connect(NAME, calls=SLOTS, timeout=60) as client:
        serve_http(listening, lambda pixels: ask(client, pixels))


async def ask(client, pixels):
    """Returns (scores, pid of the engine).  Raises RingFull if there is no room for ROOM_S."""
    with await client.request_async(ROOM_S, expires_s=PATIENCE_S) as slot:
        slot.copy_from(pixels)
        call = slot.call
    with await call.result_async(PATIENCE_S) as answer:
        return answer.array.copy(), int(answer.meta["engine"])


def serve_http(listening, ask):
    async def classify(request):
        try:
            pixels = pixels_of(request.headers.get("content-type", ""), await request.body())
        except Exception as why:
            return JSONResponse({"error": f"no image: {why}"}, 400)
        begun = time.perf_counter()
        try:
            scores, engine = await ask(pixels)
        except tuple(STATUS) as why:
            return JSONResponse({"error": str(why)}, STATUS[type(why)])
        took_ms, best = 1000 * (time.perf_counter() - begun), int(scores.argmax())
        answer = {"class": best, "score": float(scores[best]), "took_ms": took_ms}
        return JSONResponse(answer | {"pids": [os.getpid(), engine]})

    app = Starlette(routes=[Route("/", classify, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listening])


def pixels_of(kind, body):
    """The pixels of a JPEG, a PNG or {"pixels": rows of [red, green, blue]}, in a request's
    size."""
    if kind.startswith("application/json"):
        image = Image.fromarray(np.array(json.loads(body)["pixels"], "u1"))
    else:
        image = Image.open(io.BytesIO(body), formats=("JPEG", "PNG"))
    return np.asarray(image.convert("RGB").resize((SIDE, SIDE)))


@contextmanager
def kept_running(*roles):
    """Runs each (function, *arguments) in a process, which is started again whenever it dies."""
    crew, over = {}, threading.Event()

    def watch():
        while not over.wait(0.1):
            for k, role in enumerate(roles):
                if k not in crew or not crew[k].is_alive():
                    crew[k] = start(None, *role)

    watcher = threading.Thread(target=watch)
    try:
        with undivided():
            watcher.start()
        yield crew
    finally:
        over.set()
        if watcher.is_alive():
            watcher.join()
        for each in crew.values():
            each.terminate()
        for each in crew.values():
            each.join(10), each.kill()


def main(seconds):
    try:
        import torch
    except ImportError as missing:
        sys.exit(f"{missing}: pip install 'gpuring[examples]'")
    try:
        device = torch.zeros(1, device="cuda").device.type  # raises without a GPU
    except Exception:
        print("no GPU here, so this runs on host memory with torch on the CPU", flush=True)
        device = "host"
    import inference_load  # here, because it imports this file

    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # Ctrl-C leaves no traceback
    listening, theirs = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    terms = {"request": ((SIDE, SIDE, 3), "u1"), "response": ((CLASSES,), "f4"), "slots": SLOTS}
    terms |= {"response_meta": [("engine", "i8")], "answers": "host"}  # where workers need them
    with (
        gpuring.serve(NAME, **terms, device=device, engine=False),
        kept_running(*[(worker, listening)] * WORKERS, *[(engine,)] * ENGINES) as crew,
        kept_running(*inference_load.usual_roles(theirs, device)) as their_crew,
    ):
        sys.exit(inference_load.compare((listening, crew), (theirs, their_crew), seconds))


if __name__ == "__main__":
    main(seconds)
