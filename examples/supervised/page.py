"""A page that shows what was seen last."""

import argparse
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from camera import SIDE, H, W

import gpuring

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("port", type=int, help="port, or 0 for any that is free")

PAGE = """<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=1>
<title>Three cameras</title><style>body{{font:16px sans-serif;margin:2em}}
figure{{display:inline-block;width:30%;margin:0 1% 0 0}} svg{{background:#222}}</style>{}"""
FIGURE = f"""<figure><svg viewBox="0 0 {W} {H}"><rect x={{x}} y={{y}} width={SIDE} height={SIDE}
fill=white /></svg><figcaption>Camera {{camera}}: {{when}}</figcaption></figure>"""
newest = {}


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        figures = (FIGURE.format(**newest[camera]) for camera in sorted(newest))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.format("".join(figures)).encode())

    def log_message(self, *_):
        pass


def main(port):
    server = ThreadingHTTPServer(("127.0.0.1", port), Page)
    print(f"page  http://127.0.0.1:{server.server_port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with gpuring.attach("seen", timeout=None) as ring:
        for slot in ring.consumer(lossless=False, reattach=True):
            y, x = slot.array
            camera, pts, _ = slot.meta.item()
            when = time.strftime("%T", time.localtime(pts // 10**9))
            newest[camera] = {"camera": camera, "when": when, "y": y, "x": x}


if __name__ == "__main__":
    gpuring.exit_on_sigterm()
    main(parser.parse_args().port)
