"""HTTP workers decode photos on the GPU, and torch engines double their size.

python examples/upscale_frontends.py [SECONDS]         needs pillow, starlette, torch, uvicorn
With a GPU, nvidia-nvimgcodec-cu13 and nvidia-nvjpeg (or -cu12) it decodes and encodes there, too.
"""

import argparse
import asyncio
import contextlib
import io
import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

if __name__ == "__main__":  # first, because --help needs no package
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=float, default=5, help="time of each part (5)")
    seconds = parser.parse_args().seconds
    if not seconds > 0:
        parser.error("seconds must be more than 0")

try:
    import numpy as np
    import uvicorn
    from inference_frontends import STATUS, kept_running  # the errors, and a supervisor
    from PIL import Image
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    import gpuring
except ImportError as missing:
    sys.exit(f"{missing}: pip install 'gpuring[examples]'")

NAME, WORKERS, ENGINES, SCALE, SLOTS = "upscale", 2, 2, 2, 16
LARGEST = {"cuda": (1080, 1920), "host": (180, 320)}  # a CPU is slow
CALLS, TAKE, ROOM_S, PATIENCE_S = 8, 4, 10, 20  # calls of a worker, calls that an engine takes
QUALITY = 90  # of JPEGs
gpuring.exit_on_sigterm()  # also in the processes that it spawns


def codec(device):
    """(its name, decode, encode): JPEG to pixels (H, W, 3) in u1, and pixels to JPEG.

    With nvImageCodec on a GPU, both ways.  Else with Pillow.  Any thread may call them.
    """
    try:
        if device == "host":
            raise ImportError
        from nvidia import nvimgcodec as nv

        nv.Encoder(max_num_cpu_threads=1).encode(nv.as_image(gpu_array()), "jpeg").size  # noqa: B018
    except Exception:  # the library or its libnvjpeg is missing
        return "Pillow", decode_on_cpu, encode_on_cpu
    own = threading.local()
    good = nv.EncodeParams(quality_type=nv.QualityType.QUALITY, quality_value=QUALITY)

    def decode(jpeg):
        if not hasattr(own, "decoder"):
            own.decoder = nv.Decoder(max_num_cpu_threads=1)
        pixels = own.decoder.decode(jpeg)
        if pixels is None:
            raise ValueError("not a JPEG")
        return pixels

    def encode(pixels):
        if not hasattr(own, "encoder"):
            own.encoder = nv.Encoder(max_num_cpu_threads=1)
        return bytes(own.encoder.encode(nv.as_image(pixels), "jpeg", params=good))

    return f"nvImageCodec {nv.__version__}", decode, encode


def gpu_array():
    import torch  # not above: a worker has little use for it

    return torch.zeros((16, 16, 3), dtype=torch.uint8, device="cuda")


def decode_on_cpu(jpeg):
    return np.asarray(Image.open(io.BytesIO(jpeg), formats=("JPEG",)).convert("RGB"))


def encode_on_cpu(pixels):
    if pixels.__dlpack_device__()[0] != 1:  # 1 is host memory
        import torch

        pixels = torch.from_dlpack(pixels).cpu()
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def model(device, scale=SCALE):
    """Pixels (H, W, 3) to (scale × H, scale × W, 3), both u1; the same weights in each process."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    nn, kind = torch.nn, torch.float16 if device == "cuda" else torch.float32
    net = nn.Sequential(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU())
    net.extend([nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()])
    net.extend([nn.Conv2d(32, 3 * scale**2, 3, padding=1), nn.PixelShuffle(scale)])
    net = net.to(device.replace("host", "cpu"), kind, memory_format=torch.channels_last)

    @torch.inference_mode()
    def enlarge(photo):
        pixels = photo[None].permute(0, 3, 1, 2).to(kind) / 255
        large = nn.functional.interpolate(pixels, scale_factor=scale, mode="bilinear")
        large += 0.2 * net(pixels - 0.5)
        return (255 * large.clamp_(0, 1)).round_().to(torch.uint8)[0].permute(1, 2, 0)

    return enlarge


def engine(device):
    import torch

    enlarge = model(device)
    with gpuring.serve(NAME, timeout=60) as server, contextlib.suppress(gpuring.EndOfStream):
        while True:
            with server.take(TAKE) as calls:
                for call in calls:
                    large = enlarge(torch.from_dlpack(call.slot))
                    with call.answer(shape=large.shape) as slot:
                        torch.from_dlpack(slot).copy_(large)


def worker(listening, device):
    _, decode, encode = codec(device)
    threads = ThreadPoolExecutor(CALLS)  # decoding and encoding wait for the GPU: no loop should
    with gpuring.connect(NAME, calls=CALLS, timeout=60) as client:

        async def ask(jpeg):
            run = asyncio.get_running_loop().run_in_executor
            photo = await run(threads, decode, jpeg)
            slot = await client.request_async(ROOM_S, expires_s=PATIENCE_S, shape=photo.shape)
            with slot:
                slot.copy_from(photo)  # from GPU to GPU, in the order of its stream
                call = slot.call
            with await call.result_async(PATIENCE_S) as answer:
                return await run(threads, encode, answer)

        config = uvicorn.Config(application(ask), log_level="warning", access_log=False)
        uvicorn.Server(config).run([listening])


def application(enlarge):
    async def post(request):
        try:
            large = await enlarge(await request.body())
        except tuple(STATUS) as why:
            return PlainTextResponse(str(why), STATUS[type(why)])
        except (ValueError, OSError) as why:
            return PlainTextResponse(f"no photo for this service: {why}", 400)
        return Response(large, media_type="image/jpeg", headers={"x-pid": str(os.getpid())})

    return Starlette(routes=[Route("/", post, methods=["POST"])])


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
    import upscale_load  # here, because it imports this file

    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # Ctrl-C leaves no traceback
    height, width = LARGEST[device]
    jpegs = list(upscale_load.photos(3, height, width))
    print(f"codec     {codec(device)[0]}, photos of {width} × {height}", flush=True)
    listening = socket.create_server(("127.0.0.1", 0))
    large = (SCALE * height, SCALE * width, 3)
    terms = {"request": ((height, width, 3), "u1"), "response": (large, "u1")}
    gate = None if device == "host" else "host"  # a stream that waits would hold the next photo up
    roles = [*[(worker, listening, device)] * WORKERS, *[(engine, device)] * ENGINES]
    with (
        gpuring.serve(NAME, **terms, slots=SLOTS, device=device, gate=gate, engine=False),
        kept_running(*roles) as crew,
    ):
        answers = upscale_load.Answers(jpegs)  # while the others start
        sys.exit(upscale_load.test(listening.getsockname(), crew, jpegs, answers, seconds))


if __name__ == "__main__":
    main(seconds)
