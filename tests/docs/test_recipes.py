"""Each block of docs/recipes.md runs where its title says, and prints what its comments say."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest

from gpuring.memory import frameworks
from tests import ROOT
from tests.helpers.processes import PATIENCE_S, poll

PAGE = (ROOT / "docs" / "recipes.md").read_text()
TITLES = {"needs a GPU": (False, True), "host memory": (True, False), "": (True, True)}
"""On the host, and on a GPU."""


class Recipe(NamedTuple):
    heading: str
    title: str
    code: str

    @property
    def whole(self) -> bool:
        """The block as a program.  If it is not one by itself, the page's first block comes before
        it."""
        return "import gpuring" in self.code

    @property
    def printed(self) -> list[str]:
        return re.findall(r"^ *print\(.*\) +# (.*)$", self.code, re.M)


def _recipes() -> list[Recipe]:
    found, heading = [], ""
    block = r'^```python(?: title="(?P<title>[^"]*)")?\n(?P<code>.*?)^```$'
    for match in re.finditer(block + r"|^##+ (?P<heading>[^\n]*)$", PAGE, re.M | re.S):
        heading = match["heading"] or heading
        if match["code"]:
            found.append(Recipe(heading, match["title"] or "", match["code"]))
    return found


SETUP, *RECIPES = _recipes()
PROGRAMS = [recipe for recipe in RECIPES if "app = Starlette(" not in recipe.code]
(WEB,) = (recipe for recipe in RECIPES if recipe not in PROGRAMS)


def _runs() -> list[object]:
    runs = []
    for number, recipe in enumerate(PROGRAMS):
        for on_gpu, wanted in enumerate(TITLES[recipe.title]):
            if wanted:
                kind = "cuda" if on_gpu else "host"
                marks = [pytest.mark.gpu] if on_gpu else []
                label = f"{number}-{recipe.heading}-{kind}"
                runs.append(pytest.param(recipe, kind, id=label, marks=marks))
    return runs


def _need(code: str) -> None:
    """Skips the test if a library of the recipe is not installed."""
    if "import cupy" in code:
        pytest.importorskip("cupy", reason="its arrays are CuPy's")
    for module in re.findall(r"^(?:import|from) ([\w.]+)", code, re.M):
        package = module.partition(".")[0]
        if find_spec(package) is None or find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    if "from numba import cuda" in code:
        from numba import cuda

        try:
            cuda.compile_ptx(lambda: None, ())
        except AttributeError as error:  # an older Numba beside a newer NumPy
            pytest.skip(f"numba does not compile here: {error}")


def _for_torch(code: str, kind: str) -> str:
    """The text that the page gives for a GPU that only torch uses."""
    if kind == "host" or frameworks.cupy() is not None or "slot.array" not in code:
        return code
    return "import torch\n" + code.replace("slot.array", "torch.from_dlpack(slot)")


@pytest.fixture
def run(programs, tmp_path, monkeypatch):
    """Runs a program.  Returns what it prints."""
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    def run(code: str, patience_s: float) -> list[str]:
        (tmp_path / "recipe.py").write_text(code)
        process = programs.start("recipe.py")
        out, _ = process.communicate(timeout=patience_s)
        assert process.returncode == 0
        return out.splitlines()

    return run


def test_those_for_a_gpu_are_python_too():
    for recipe in RECIPES:
        compile(recipe.code, recipe.heading, "exec")


@pytest.mark.parametrize(("recipe", "kind"), _runs())
def test_recipe(recipe, kind, name, run):
    assert recipe.printed, "the recipe does not show its output"
    code = recipe.code if recipe.whole else SETUP.code + recipe.code
    code = code.replace('"cam0"', repr(name)).replace('device = "cuda"', f'device = "{kind}"')
    code = _for_torch(code, kind)
    _need(code)
    assert run(code, PATIENCE_S if kind == "host" else 2 * PATIENCE_S) == recipe.printed


@pytest.fixture
def serve():
    """Serves an application until the test ends.  Returns the address."""
    running = []

    def serve(app: Any) -> str:
        uvicorn = pytest.importorskip("uvicorn", reason="gpuring[examples] is not installed")
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        running.append((server, threading.Thread(target=server.run)))
        running[-1][1].start()
        poll(lambda: server.started)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    yield serve
    for server, thread in running:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def test_a_page_over_a_ring(place, name, serve):
    code = _for_torch(WEB.code, "cuda" if place.on_gpu else "host")
    _need(code)
    namespace: dict[str, Any] = {}
    exec(code.replace('"cam0"', repr(name)), namespace)
    address = f"{serve(namespace['app'])}/brightness"
    for pts in 40, 50:  # the camera is started again
        with (
            place.create(name, slots=4, shape=(3, 4), dtype="f4", meta=[("pts", "i8")]) as ring,
            ring.producer() as producer,
            ThreadPoolExecutor() as threads,
        ):
            answer = threads.submit(lambda: urllib.request.urlopen(address, timeout=10).read())
            poll(lambda: ring.stats().subscriptions)
            with producer.claim(10) as slot:
                place.fill(slot, 3)
                slot.meta["pts"] = pts
            assert json.loads(answer.result(10)) == {"pts": pts, "mean": 3.0}
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(address, timeout=10)
