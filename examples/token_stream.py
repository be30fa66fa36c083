"""One engine, four front ends: prompts and images in, streams of tokens out, while some are killed.

python examples/token_stream.py [PROMPTS]       of each front end; needs NumPy only

Prompts are small and images are large, so they are two services, which one engine takes from. The
engine has many streams at a time, and sends a token of each in turn. One front end hangs up in the
middle of each stream, one is killed, and then the engine is killed and another one takes over. The
model is a toy which always says the same to the same prompt. So every token can be checked.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from contextlib import suppress

from crew import start, together

if __name__ == "__main__":  # first, because --help needs no package
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", nargs="?", type=int, default=60, help="for each front end (60)")
    asked = parser.parse_args().prompts
    if asked < 1:
        parser.error("prompts must be at least 1")

try:
    from numpy.random import default_rng

    import gpuring
except ImportError as missing:
    sys.exit(f"{missing}: pip install gpuring")

NAME = f"example-{os.getpid()}"
PROMPTS = {
    "request": {"prompt": ((32,), "u4"), "seen": ((4,), "u8")},
    "request_meta": [("length", "u4"), ("wanted", "u4")],
    "response": ((1,), "u4"),  # a token
    "device": "host",
}
IMAGES = {"request": ((480, 640, 3), "u1"), "response": ((4,), "u8"), "device": "host"}
FRONT_ENDS, AT_ONCE, TOKENS, HEARD, PATIENCE_S = 4, 4, 100, 10, 60
HANGS_UP, IS_KILLED = 1, 2  # of the front ends
gpuring.exit_on_sigterm()  # also in the processes that it spawns


# ---- the model -----------------------------------------------------------------------------------


def look(image):
    """The numbers that the model sees in an image: one for each quarter."""
    high, wide = image.shape[0] // 2, image.shape[1] // 2
    return image.reshape(2, high, 2, wide, 3).sum(axis=(1, 3, 4), dtype="u8").ravel()


def read(prompt, seen):
    """The state of the model after the prompt."""
    state = 1
    for word in (*prompt, *seen):
        state = step(state ^ int(word))
    return state


def step(state):
    return (state * 6364136223846793005 + 1442695040888963407) % 2**64


def token(state):
    return state >> 40


# ---- the engine ----------------------------------------------------------------------------------


def engine(name):
    """Answers prompts.  A front end that does not read gets its next token in a later turn."""
    streams = {}  # call: state of the model, and how many tokens are still to come
    with (
        gpuring.serve(f"{name}.prompts", timeout=10) as prompts,
        gpuring.serve(f"{name}.images", timeout=10) as images,
    ):
        while True:
            try:
                calls = gpuring.take([prompts, images], 8, timeout=0 if streams else 1)
            except gpuring.RingTimeout:
                calls = []
            except gpuring.EndOfStream:  # the keeper has closed both services
                break
            for call in calls:
                if calls.server is images:
                    call.reply(look(call.array))
                else:
                    length, wanted = call.meta["length"], int(call.meta["wanted"])
                    streams[call] = read(call["prompt"][:length], call["seen"]), wanted
            for call, (state, left) in list(streams.items()):
                with suppress(gpuring.RingFull, gpuring.CallCancelled):
                    streams[call] = speak(call, step(state), left)
                if call.answered:  # the stream has ended, or was cancelled
                    del streams[call]
        ended, given_up = prompts.counts.answered, prompts.counts.cancelled
    given_up = f"{given_up} given up on the way"
    sys.stdout.write(f"engine       took over: {ended} streams to their end, {given_up}\n")


def speak(call, state, left):
    """Sends the next token of a stream, or its end."""
    if left:
        with call.part(timeout=0) as slot:
            slot.array[0] = token(state)
    else:
        call.end()
    return state, left - 1


# ---- the front ends ------------------------------------------------------------------------------


def front_end(name, number, asked):
    """Serves several visitors at a time, until so many prompts were asked."""
    asyncio.run(visitors(name, number, asked))


async def visitors(name, number, asked):
    told = {"tokens": 0, "again": 0}
    todo = iter(range(asked) if number != IS_KILLED else range(10**9))
    patient = {"timeout": PATIENCE_S, "engine_s": PATIENCE_S}
    with (
        gpuring.connect(f"{name}.prompts", calls=AT_ONCE, parts=16, **patient) as prompts,
        gpuring.connect(f"{name}.images", calls=AT_ONCE, **patient) as images,
    ):

        async def visitor():
            for k in todo:
                await visit(prompts, images, number, k, told)

        await asyncio.gather(*(visitor() for _ in range(AT_ONCE)))
    each = f"hung up after {HEARD} tokens" if number == HANGS_UP else f"{TOKENS} tokens each"
    right = f"{told['tokens']} in all, each right; {told['again']} streams asked for again"
    # One write, where `print` may make two: other processes write as well.
    sys.stdout.write(f"front end {number}  {asked} prompts, {each}, {right}\n")


async def visit(prompts, images, number, k, told):
    dice = default_rng([number, k])
    image = dice.integers(0, 255, IMAGES["request"][0], "u1")
    prompt = dice.integers(0, 2**32, 1 + k % 32, "u4")
    with await images.call_async(image, timeout=PATIENCE_S) as answer:
        seen = answer.array.copy()
    assert (seen == look(image)).all()
    while not await listen(prompts, number, prompt, seen, told):
        told["again"] += 1


async def listen(prompts, number, prompt, seen, told):
    """Takes the tokens as they come.  Returns False if their engine was killed."""
    with await prompts.request_async(PATIENCE_S) as slot:
        slot["prompt"][: len(prompt)], slot["seen"][...] = prompt, seen
        slot.meta["length"], slot.meta["wanted"] = len(prompt), TOKENS
        call = slot.call
    state, heard = read(prompt, seen), 0
    try:
        async for part in call.parts(PATIENCE_S):
            state, heard = step(state), heard + 1
            assert part.array[0] == token(state), f"token {heard} is wrong"
            if number == HANGS_UP and heard == HEARD:
                break  # cancels the call
    except gpuring.PeerLost:
        return False
    told["tokens"] += heard
    assert heard == (HEARD if number == HANGS_UP else TOKENS)
    return True


# ---- all together --------------------------------------------------------------------------------


def prompts_asked(keeper, fronts):
    """Yields how many prompts were asked, until all front ends have ended.  Kills those that are
    left when none was asked for long, as when one is stopped.  Others have given up by then."""
    asked, since = 0, time.monotonic()
    while left := [each for each in fronts if each.is_alive()]:
        before, asked = asked, keeper.stats().cursor - keeper.ring.slots
        if asked != before:
            since = time.monotonic()
        elif time.monotonic() > since + 2 * PATIENCE_S:
            for each in left:
                sys.stderr.write(f"{each.name} has asked nothing for {2 * PATIENCE_S} s: killed\n")
                each.kill()
                each.join()
        yield asked
        time.sleep(0.001)


def main(asked):
    with (
        gpuring.serve(f"{NAME}.prompts", **PROMPTS, engine=False) as keeper,
        gpuring.serve(f"{NAME}.images", **IMAGES, slots=8, engine=False),
        together(),
    ):
        first = start("engine", engine, NAME)
        fronts = [start(f"front end {n}", front_end, NAME, n, asked) for n in range(FRONT_ENDS)]
        alive = [each for n, each in enumerate(fronts) if n != IS_KILLED]
        counts = prompts_asked(keeper, alive)
        for share, victim in ((1, fronts[IS_KILLED]), (2, first)):
            next((n for n in counts if n >= share * asked or not first.is_alive()), None)
            victim.kill()
        second = start("another engine", engine, NAME)
        for _ in counts:
            pass
    second.join(PATIENCE_S)
    second.kill()
    sys.exit(any(each.exitcode for each in (*alive, second)))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # Ctrl-C leaves no traceback
    main(asked)
