"""Draws the pictures of the pages: `python docs/pictures/draw.py` writes the .svg files beside it.

They are 480 wide, so that a phone shows their text in a readable size, and have colours for light
and for dark pages.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH = 480
FOLDER = Path(__file__).parent
LIGHT = {
    "paper": ("#fff", "#d0d7de"), "box": ("#f6f8fa", "#8c959f"), "gpu": ("#eef6ee", "#4c9a52"),
    "slot": ("#fff", "#8c959f"), "written": ("#ffe7c2", "#bc6c00"), "held": ("#d6e9ff", "#0969da"),
    "new": ("#fbdcee", "#bf3989"), "stream": ("#e3e0f8", "#6e5bd0"), "bad": ("#ffe0dd", "#cf222e"),
}  # fmt: skip
DARK = {
    "paper": ("#12161c", "#3d444d"), "box": ("#1c232c", "#6e7681"), "gpu": ("#14261a", "#4c9a52"),
    "slot": ("#12161c", "#6e7681"), "written": ("#523200", "#d9922e"),
    "held": ("#0f3460", "#539bf5"),
    "new": ("#551c3d", "#e275ad"), "stream": ("#302a5c", "#9d8ff0"), "bad": ("#5c1a1a", "#ff7b72"),
}  # fmt: skip
"""Of each kind of box: what fills it, and its line."""


def _colours(kinds: dict[str, tuple[str, str]], ink: str, faint: str) -> str:
    boxes = "".join(f".{kind}{{fill:{fill};stroke:{line}}}" for kind, (fill, line) in kinds.items())
    fence, dead = kinds["stream"][1], kinds["bad"][1]
    return (
        f"{boxes}text{{fill:{ink}}}.faint{{fill:{faint}}}.move{{stroke:{ink}}}.line{{stroke:{faint}}}"
        f".fence{{stroke:{fence}}}.death{{stroke:{dead}}}text.dead{{fill:{dead}}}"
    )


STYLE = (
    'text{font:15px -apple-system,"Segoe UI",Helvetica,Arial,"DejaVu Sans",sans-serif}'
    ".bold{font-weight:600}.mid{text-anchor:middle}.end{text-anchor:end}"
    "path{fill:none;stroke-width:2}.line{stroke-width:1}.fence{stroke-dasharray:5 4}"
    ".line.dashed{stroke-dasharray:2 4}"
    + _colours(LIGHT, "#1f2328", "#59636e")
    + "@media(prefers-color-scheme:dark){"
    + _colours(DARK, "#e6edf3", "#9da7b1")
    + "}"
)


class Picture:
    """A drawing.  Coordinates are those of SVG: y grows downwards."""

    def __init__(self, name: str, height: int, title: str, description: str) -> None:
        self.name = name
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(description)}</desc>',
            f"<style>{STYLE}</style>",
        ]
        self.box("paper", 0.5, 0.5, WIDTH - 1, height - 1, round=8)

    def box(self, kind: str, x: float, y: float, w: float, h: float, *, round: float = 4) -> None:
        self._parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="{round}"/>'
        )

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        self._parts.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>')

    def label(self, kind: str, x: float, y: float, w: float, h: float, *lines: str) -> None:
        """A box with lines of text in its middle."""
        self.box(kind, x, y, w, h)
        first = y + h / 2 + 5 - 9.5 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + w / 2, first + 19 * number, line, "mid")

    def slots(self, x: float, y: float, w: float, slots: dict[int, str]) -> None:
        """Slots in a row, each with the sequence in it and its kind."""
        for place, (sequence, kind) in enumerate(slots.items()):
            self.box(kind, x + place * w, y, w - 6, 40)
            faint = " faint" if kind == "slot" else ""
            self.text(x + place * w + (w - 6) / 2, y + 26, str(sequence), f"mid bold{faint}")

    def line(self, kind: str, *points: tuple[float, float]) -> None:
        self._parts.append(f'<path class="{kind}" d="{_path(points)}"/>')

    def arrow(self, kind: str, *points: tuple[float, float]) -> None:
        """A line with a head at its last point, which lies straight below, above or beside."""
        (x0, y0), (x1, y1) = points[-2:]
        dx, dy = _sign(x1 - x0), _sign(y1 - y0)
        back = [(x1 - 8 * dx + 5 * side * dy, y1 - 8 * dy + 5 * side * dx) for side in (1, -1)]
        self.line(kind, *points)
        head = kind.partition(" ")[0]
        self._parts.append(
            f'<path class="{head}" style="stroke-dasharray:none" '
            f'd="{_path([back[0], (x1, y1), back[1]])}"/>'
        )

    def cross(self, x: float, y: float) -> None:
        """A death."""
        for side in (1, -1):
            self.line("death", (x - 7, y - 7 * side), (x + 7, y + 7 * side))

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])


def _path(points: list[tuple[float, float]] | tuple[tuple[float, float], ...]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


# ---- the pictures --------------------------------------------------------------------------------


def ring() -> Picture:
    picture = Picture(
        "ring", 482, "A ring of eight slots with one producer and three readers",
        "A producer process writes frame 49 into slot 1. Slot 0 has frame 48, slots 2 to 7 have "
        "frames 42 to 47. A lossy reader reads frame 48. Members A and B of a lossless "
        "subscription read frames 44 and 46. The header in /dev/shm says who is there, which frame "
        "is in which slot, and how far the streams have come.",
    )  # fmt: skip
    picture.box("box", 14, 14, 452, 70)
    picture.text(26, 39, "producer process", "bold")
    picture.text(26, 65, "Its CUDA stream writes frame 49 into the slot.")
    picture.box("gpu", 14, 118, 452, 88)
    picture.text(282, 141, "8 slots on the GPU, one allocation", "mid")
    kinds = {48: "new", 49: "written", 42: "slot", 43: "slot", 44: "held", 45: "slot", 46: "held"}
    picture.slots(25, 154, 54.5, kinds | {47: "slot"})
    picture.arrow("move", (104, 84), (104, 152))
    for slot in (0, 4, 6):
        picture.arrow("move", (49 + 54.5 * slot, 194), (49 + 54.5 * slot, 246))
    picture.box("box", 14, 248, 152, 132)
    picture.text(26, 273, "lossy reader", "bold")
    lossy = ["reads 48, and has", "lost 45 to 47.", "Nobody waits", "for it."]
    for number, line in enumerate(lossy):
        picture.text(26, 297 + 19 * number, line)
    picture.box("held", 178, 248, 288, 132)
    picture.label("box", 188, 258, 130, 54, "member A", "reads 44")
    picture.label("box", 326, 258, 130, 54, "member B", "reads 46")
    picture.text(322, 333, "lossless subscription: each frame", "mid")
    picture.text(322, 352, "goes to one member, and the", "mid")
    picture.text(322, 371, "producer waits for it", "mid")
    picture.box("stream", 14, 394, 452, 74)
    picture.text(26, 418, "header in /dev/shm", "bold")
    picture.text(26, 440, "who is here, which frame is in which slot, metadata,")
    picture.text(26, 459, "and how far the streams have come with each slot")
    return picture


def frame() -> Picture:
    """Four columns; time goes down."""
    picture = Picture(
        "frame", 560, "The path of a frame through one slot",
        "Four columns: the producer's thread and its CUDA stream, the consumer's CUDA stream and "
        "its thread. The threads claim, publish, acquire and release, and return at once. The "
        "producer's stream writes and stores a fence. The consumer's stream waits for that fence, "
        "reads, and stores its own, for which the next claim of the slot makes its stream wait.",
    )  # fmt: skip
    p, ps, cs, c = 62, 176, 304, 418
    for x, whose, what in (
        (p, "producer's", "thread"), (ps, "its", "stream"),
        (cs, "its", "stream"), (c, "consumer's", "thread"),
    ):  # fmt: skip
        picture.text(x, 28, whose, "mid bold")
        picture.text(x, 47, what, "mid bold")
        picture.line("line dashed", (x, 60), (x, 520))

    def call(x: float, y: float, name: str) -> None:
        picture.label("box", x - 46, y, 92, 32, name)

    call(p, 70, "claim")
    picture.arrow("move", (p + 46, 86), (ps - 48, 86))
    picture.label("stream", ps - 46, 70, 92, 50, "wait for", "old readers")
    picture.label("written", ps - 46, 120, 92, 140, "write", "the frame")
    call(p, 140, "publish")
    picture.arrow("move", (p + 46, 156), (ps - 46, 156))
    picture.label("stream", ps - 46, 260, 92, 32, "store fence")
    call(c, 180, "acquire")
    picture.arrow("move", (c - 46, 196), (cs + 46, 196))
    picture.label("stream", cs - 46, 180, 92, 112, "wait for", "the fence")
    picture.arrow("fence", (ps + 46, 276), (cs - 46, 276))
    picture.label("held", cs - 46, 292, 92, 110, "read", "the frame")
    call(c, 232, "release")
    picture.arrow("move", (c - 46, 248), (cs + 46, 248))
    picture.label("stream", cs - 46, 402, 92, 32, "store fence")
    picture.label("box", p - 46, 330, 92, 50, "claim,", "a lap later")
    picture.arrow("move", (p + 46, 346), (ps - 46, 346))
    picture.label("stream", ps - 46, 330, 92, 104, "wait for", "the fence")
    picture.arrow("fence", (cs - 46, 418), (ps + 46, 418))
    picture.label("written", ps - 46, 434, 92, 70, "write the", "next frame")
    picture.text(240, 545, "Threads do not wait for the GPU. Streams wait for streams.", "mid")
    return picture


def late() -> Picture:
    picture = Picture(
        "late", 470, "A reader that is late, lossy and lossless",
        "A ring of four slots has frames 12 to 15, and a reader has read 12. The producer goes on. "
        "If the reader is lossy, the producer overwrites 13, 14 and 15. The reader then gets frame "
        "16, and slot.lost is 3. If the reader is lossless, the claim of sequence 17 waits "
        "until the reader has released 13.",
    )  # fmt: skip
    before = {12: "slot", 13: "new", 14: "new", 15: "new"}
    picture.text(20, 32, "A reader has read 12, and is busy.", "bold")
    picture.slots(24, 48, 70, before)
    picture.text(316, 74, "13 to 15 are unread")
    picture.line("line", (14, 110), (466, 110))
    picture.text(20, 138, "It is lossy: the producer goes on.", "bold")
    picture.slots(24, 154, 70, {16: "written", 17: "written", 18: "written", 19: "written"})
    picture.text(316, 180, "13 to 15 are gone")
    picture.arrow("move", (56, 194), (56, 236))
    picture.label("box", 24, 238, 440, 46, "The reader comes back and gets 16.  slot.lost == 3")
    picture.line("line", (14, 304), (466, 304))
    picture.text(20, 332, "It is lossless: the producer waits.", "bold")
    picture.slots(24, 348, 70, {16: "written", 13: "held", 14: "new", 15: "new"})
    picture.text(316, 374, "13 is in the way")
    picture.arrow("move", (126, 430), (126, 390))
    picture.label("box", 24, 412, 440, 46, "The claim of 17 waits until 13 is released.")
    return picture


def torn() -> Picture:
    picture = Picture(
        "torn", 427, "A torn frame",
        "A producer publishes a frame, and is killed before its GPU has written all of it. The "
        "kernel ends its GPU work. Another process of the ring marks the frame as torn. A reader "
        "that has not acquired the frame passes over it. One that holds it gets FrameTorn from "
        "slot.check() and from the release. One that has released it gets FrameTorn from its next "
        "acquire or from close().",
    )  # fmt: skip
    picture.label("box", 24, 18, 190, 54, "The producer", "publishes frame 7.")
    picture.label("written", 254, 18, 190, 54, "Its GPU is still", "writing the frame.")
    picture.arrow("move", (214, 45), (252, 45))
    picture.arrow("death", (119, 72), (119, 104))
    picture.label("bad", 24, 106, 190, 54, "The producer", "is killed.")
    picture.arrow("death", (214, 133), (252, 133))
    picture.label("bad", 254, 106, 190, 54, "The kernel ends", "its GPU work.")
    picture.arrow("death", (349, 72), (349, 104))
    picture.arrow("move", (349, 160), (349, 192))
    picture.label("box", 24, 194, 420, 46, "A process of the ring marks frame 7 as torn.")
    picture.text(24, 276, "What a reader of frame 7 gets:", "bold")
    rows = [
        (306, "It has not acquired it:", "the next frame"),
        (338, "It holds it:", "FrameTorn by slot.check()"),
        (357, "", "and by the release"),
        (389, "It has released it:", "FrameTorn by the next acquire"),
        (408, "", "or by close()"),
    ]
    for y, when, what in rows:
        picture.text(24, y, when)
        picture.text(204, y, what)
    return picture


def call() -> Picture:
    """A sequence diagram; time goes down."""
    picture = Picture(
        "call", 542, "A service call as a sequence",
        "A client writes a request into the ring of requests. An engine takes it, perhaps with "
        "others as a batch, computes, and writes the answer into the client's ring of answers. The "
        "client reads it and gives the slot back. If the engine is killed after it has taken the "
        "request, the request is free again, and another engine takes it.",
    )  # fmt: skip
    lifelines = {"client": 54, "requests": 180, "engine": 306, "answers": 426}
    for name, x in lifelines.items():
        picture.label("gpu" if name in ("requests", "answers") else "box", x - 46, 14, 92, 34, name)
        picture.line("line dashed", (x, 48), (x, 420))
    client, requests, engine, answers = lifelines.values()
    steps = [
        (client, requests, "request"),
        (requests, engine, "take a batch"),
        (engine, engine, "compute"),
        (engine, answers, "answer"),
        (engine, requests, "release"),
        (answers, client, "result"),
        (client, answers, "release"),
    ]
    for number, (start, end, name) in enumerate(steps):
        y = 90 + 52 * number
        if start == end:
            picture.label("held", start - 46, y - 28, 92, 40, name)
            continue
        picture.arrow("move", (start, y), (end, y))
        picture.text((start + end) / 2, y - 7, name, "mid")
    picture.box("bad", 14, 436, 452, 92)
    picture.cross(34, 460)
    picture.text(52, 465, "The engine is killed while it computes:", "bold")
    picture.text(52, 489, "Another engine takes the request, and sees")
    picture.text(52, 512, "call.redelivered. The client gets one answer.")
    return picture


def bridge() -> Picture:
    picture = Picture(
        "bridge", 470, "A bridge between two hosts",
        "On one host a camera publishes frames in the near ring. The exporter reads them as one "
        "consumer of that ring, and sends them over the network. On the other host the importer "
        "claims slots of the far ring, receives frames into them, and publishes them. Detectors "
        "read the far ring. The importer sends back credits for free slots, and says which frames "
        "have arrived, so that the exporter releases them.",
    )  # fmt: skip
    for y, host in ((14, "the camera's host"), (286, "the detector's host")):
        picture.box("box", 14, y, 452, 170, round=8)
        picture.text(26, y + 25, host, "bold")
    picture.label("slot", 26, 54, 110, 52, "camera")
    picture.arrow("move", (136, 80), (168, 80))
    picture.label("gpu", 170, 54, 284, 52, "near ring cam0")
    picture.arrow("move", (312, 106), (312, 128))
    picture.label("held", 170, 130, 284, 42, "exporter: one more consumer")
    picture.arrow("move", (230, 172), (230, 326))
    picture.text(218, 220, "frames", "end")
    picture.text(218, 240, "metadata", "end")
    picture.arrow("fence", (390, 326), (390, 172))
    picture.text(378, 220, "free slots,", "end")
    picture.text(378, 240, "what has arrived", "end")
    picture.text(26, 250, "network", "faint")
    picture.line("line dashed", (14, 266), (466, 266))
    picture.label("held", 170, 328, 284, 42, "importer: the producer")
    picture.arrow("move", (312, 370), (312, 392))
    picture.label("gpu", 170, 394, 284, 52, "far ring cam0")
    picture.arrow("move", (170, 420), (138, 420))
    picture.label("slot", 26, 394, 110, 52, "detectors")
    return picture


PICTURES = (ring, frame, late, torn, call, bridge)

if __name__ == "__main__":
    for draw in PICTURES:
        picture = draw()
        (FOLDER / f"{picture.name}.svg").write_text(picture.svg())
