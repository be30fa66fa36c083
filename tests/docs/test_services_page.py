"""The programs of docs/services.md and docs/parts.md run as they stand there."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gpuring
from tests.docs.blocks import block, run
from tests.helpers.processes import PATIENCE_S

SERVICE = {"request": ((3, 224, 224), "f4"), "response": ((1000,), "f4")}
MODEL = """
import numpy as np
def model(images):
    return np.full((*images.shape[:-3], 1000), images.mean(), "f4")
"""


@pytest.fixture
def engine(programs, tmp_path, monkeypatch) -> Callable[[str], subprocess.Popen[str]]:
    """Starts an engine of a page on the host, with a model."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")

    def start(code: str) -> subprocess.Popen[str]:
        shapes = 'SHAPES = {"request": ((3, 224, 224), "f4"), "response": ((1000,), "f4"), '
        shapes += '"device": "host"}\n'
        code = re.sub(r"^SHAPES = .*\n", "", code, flags=re.M)
        (tmp_path / "engine.py").write_text(f"import gpuring\n{MODEL}{shapes}{code}")
        return programs.start("engine.py", stderr=subprocess.PIPE)

    return start


IMAGE = np.full((3, 224, 224), 2, "f4")


@block("services.md", 0, 1)
@pytest.mark.slow
def test_a_service(code, engine, handlers):
    at = code.index("# worker.py")
    process = engine(code[:at])
    made = run(code[at:], image=IMAGE)
    assert set(made["scores"]) == {2}
    process.terminate()
    assert process.wait(PATIENCE_S) == 143


def asked(service: str) -> float:
    with (
        gpuring.connect(service, timeout=PATIENCE_S) as client,
        client.call(IMAGE, timeout=PATIENCE_S) as answer,
    ):
        return float(answer.array.mean())


@block("services.md", 2)
@pytest.mark.slow
def test_a_function_for_each_batch(code, engine, name):
    process = engine(code)
    assert asked(f"{name}.classify") == 2
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


@block("services.md", 7)
@pytest.mark.slow
def test_several_services(code, engine, name):
    reply = "for call in calls: call.reply(model(call.array))"
    process = engine("gpuring.exit_on_sigterm()\n" + code.replace("for call in calls: ...", reply))
    assert [asked(f"{name}.{each}") for each in ("normal", "urgent")] == [2, 2]
    process.terminate()
    assert process.wait(PATIENCE_S) == 143


@block("parts.md", 0, 1)
def test_parts(code, name, capsys):
    at = code.index("# worker")
    service = f"{name}.generate"
    with gpuring.serve(service, request=((4,), "f4"), response=((), "f4"), device="host") as server:

        def answer() -> None:
            with server.take(timeout=PATIENCE_S) as calls:
                for call in calls:
                    run(code[:at], call=call, token=7)

        answering = threading.Thread(target=answer)
        answering.start()
        run(code[at:], prompt=np.zeros(4, "f4"))
        answering.join()
    assert [float(line) for line in capsys.readouterr().out.split()] == [7]


@contextlib.contextmanager
def answered(service: str) -> Iterator[Any]:
    """A service in which a thread answers one call, and its client."""
    with (
        gpuring.serve(service, **SERVICE, device="host") as server,
        gpuring.connect(service) as client,
    ):

        def answer() -> None:
            with server.take(timeout=PATIENCE_S) as calls:
                for call in calls:
                    call.reply(np.full(1000, 3, "f4"))

        answering = threading.Thread(target=answer)
        answering.start()
        yield server, client
        answering.join()


@block("services.md", 3)
def test_a_call_of_asyncio(code, name):
    with answered(f"{name}.classify") as (_, client):
        assert run(code, client=client, image=IMAGE)["call"].done


@block("services.md", 4)
def test_a_request_that_may_be_dropped(code, name):
    with answered(f"{name}.classify") as (_, client):
        client.call(IMAGE, timeout=PATIENCE_S).release()
        assert run(code, client=client)["slot"] is not None


@block("services.md", 5)
def test_a_keeper(code, name, handlers):
    def run_engines() -> None:
        with gpuring.serve(f"{name}.classify", timeout=30) as server:
            assert server.counts.taken == 0

    run(code, run_engines=run_engines, SHAPES=SERVICE | {"device": "host"})


@block("services.md", 6)
def test_metrics_of_an_engine(code, name):
    pytest.importorskip("prometheus_client", reason="gpuring.service.prometheus needs it")
    with gpuring.serve(f"{name}.classify", **SERVICE, device="host") as server:
        made = run(code.replace("9751", "0"), server=server)
        registry = made["REGISTRY"]
        found = [family.name for family in registry.collect()]
        assert any(each.startswith("gpuring_calls") for each in found), found
        (collector,) = (
            each for each in registry._collector_to_names if type(each) is made["EngineCollector"]
        )
        registry.unregister(collector)
