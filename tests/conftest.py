"""Fixtures of all tests: a deadline for each, rings in every kind of memory, child processes.

`place` runs a test over host memory and, marked `gpu`, over CUDA with each synchroniser.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import inspect
import os
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.places import PLACES, Place
from tests.helpers.processes import PATIENCE_S, Child
from tests.helpers.rig import Rig
from tests.helpers.rings import segments_of
from tests.helpers.segment import Segment

DEADLINE_S = 240
"""It ends a test that hangs.  A healthy one takes as long as a busy machine needs."""
LAST_RESORT_S = 20
"""So long after the deadline the run is ended, because a call holds the GIL and never returns."""

HIDING = str(Path(__file__).parent / "helpers/hiding")
"""A folder with a CuPy that cannot be imported."""
OF_CUPY = ("CuPy is hidden from these tests", "is an array of CuPy, which is not installed")


if sys.dont_write_bytecode:
    # Many container images set this.  Each of hundreds of interpreters would compile the package
    # anew.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The tools' tables are as wide as it says, and pytest-xdist sets it.
os.environ.pop("COLUMNS", None)

# JAX takes three quarters of a GPU for itself, and other tests run at the same time.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# How long an example takes depends on the machine, not on the code.
settings.register_profile("gpuring", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpuring")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stress-seconds",
        type=float,
        default=float(os.environ.get("GPURING_STRESS_SECONDS", "0")),
        help="how long each configuration of test_stress.py runs (default: a fraction of a second)",
    )
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")
    parser.addoption(
        "--without-cupy", action="store_true", help="hide CuPy, and skip tests that use it"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.without_cupy:
        sys.path.insert(0, HIDING)  # multiprocessing hands it on
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([HIDING, before])
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell starts `pytest &` with SIGINT ignored, and all children would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Makes each `gc.collect` of a test quick: it skips modules and tests, which are no garbage."""
    gc.collect()
    gc.freeze()


LEFT_OUT = pytest.StashKey[int]()
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)  # before a plugin that shuffles
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run with `--slow`, and where `-m`, `-k`, a file or a test asks for them.

    Of a test with parameters, the first `keep` of `slow(keep)` always run.
    """
    chosen = config.option.markexpr or config.option.keyword
    if config.option.slow or chosen or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    quick, slow, met = [], [], Counter[str]()
    for item in items:
        marker = item.get_closest_marker("slow")
        test = item.nodeid.partition("[")[0]
        met[test] += 1
        late = marker is not None and met[test] > marker.kwargs.get("keep", 0)
        (slow if late else quick).append(item)
    config.hook.pytest_deselected(items=slow)
    config.stash[LEFT_OUT] = len(slow)
    items[:] = quick


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.section("slow tests")
        terminalreporter.line(f"{left_out} were left out: `pytest --slow` runs them, too.")


class DeadlineExceeded(BaseException):
    """This is no Exception, so that no code under test can swallow it."""


@pytest.fixture(autouse=True)
def deadline(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that takes too long.  Ends the run if the test does not even handle a signal."""
    marker = request.node.get_closest_marker("deadline")
    seconds = marker.args[0] if marker else DEADLINE_S
    assert seconds >= DEADLINE_S, "a busy machine needs longer: the mark is for later deadlines"
    seconds += 2 * request.config.getoption("--stress-seconds")

    def expired(_signal: int, _frame: FrameType | None) -> None:
        raise DeadlineExceeded(f"{request.node.nodeid}: not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + LAST_RESORT_S, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def nothing_is_handled() -> Iterator[None]:
    """An exception that is still being handled after its test would keep frames and rings alive."""
    yield
    assert sys.exc_info()[1] is None


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A name for a ring of this test.  After the test nothing of that name may be left in /dev/shm,
    except the durable subscriptions of rings that were closed.  If the test has failed, that says
    nothing: the frames of its traceback keep its rings."""
    ring = f"test-{os.getpid()}-{secrets.token_hex(4)}"
    yield ring
    if segments_of(ring):
        _forget_closed(ring)
    left = segments_of(ring)
    for path in left:
        Path("/dev/shm", path).unlink()
    assert not left or FAILED in request.node.stash, f"left behind: {left}"


def _forget_closed(prefix: str) -> None:
    import gpuring

    for ring in gpuring.ls():
        durable = any(each.durable for each in ring.subscriptions)
        if ring.name.startswith(prefix) and ring.closed and durable:
            gpuring.unlink(ring.name)


@pytest.fixture
def near(name: str) -> str:
    """The name of the ring at a bridge's exporter.  Both rings are on this host."""
    return f"{name}-near"


@pytest.fixture
def far(name: str) -> str:
    """The name of the ring that a bridge's importer makes."""
    return f"{name}-far"


@pytest.fixture
def segment() -> Iterator[Callable[..., Segment]]:
    """A function that makes headers in memfds."""
    made: list[Segment] = []

    def make(*args: Any, **options: Any) -> Segment:
        made.append(Segment(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def rig(segment: Callable[..., Segment]) -> Iterator[Callable[..., Rig]]:
    """A function that makes rings over a fake driver.  After the test its GPU finishes all work,
    and all peers leave."""
    made: list[Rig] = []

    def make(kind: str = "timeline", **options: Any) -> Rig:
        made.append(Rig(segment, kind, **options))
        return made[-1]

    yield make
    for each in made:
        assert not each.driver.broken
        each.driver.on_call = each.driver.on_query = lambda _: None
        each.driver.errors.clear()
        each.driver.capturing.clear()
        each.finish()
        for endpoint in each.peers:
            endpoint.close()
        for device in each.devices:
            device.close()  # at the interpreter's end no Python code can be the driver any more


@pytest.fixture
def children(request: pytest.FixtureRequest) -> Iterator[Callable[..., Child]]:
    """Starts `target(pipe, *args)` in processes, which are gone after the test."""
    patience = PATIENCE_S + 2 * request.config.getoption("--stress-seconds")
    started: list[Child] = []

    def start(target: Callable[..., Any], *args: Any, method: str = "forkserver") -> Child:
        started.append(Child(target, args, patience, method))
        return started[-1]

    yield start
    for child in started:
        child.end()


def gpu_missing() -> str | None:
    """Returns why no test can run on a GPU here, or None."""
    try:
        from gpuring.memory import cuda
    except ImportError as error:
        return f"no CUDA memory kind: {error}"
    available, reason = cuda.available()
    return None if available else str(reason)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests that are marked `gpu` where there is none."""
    if item.get_closest_marker("gpu") and (reason := gpu_missing()):
        pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine, in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes a failure.  Skips tests that import CuPy or use its arrays if CuPy is hidden, also if a
    child does so."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    told = str(call.excinfo.value) if call.excinfo is not None else ""
    if report.failed and item.config.option.without_cupy and any(map(told.__contains__, OF_CUPY)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), (item.location[1] or 0) + 1, "it uses CuPy's arrays")
    return report


def _marks_of(place: Place) -> list[pytest.MarkDecorator]:
    """Tests of pinned rings are slow ones, because the host does the same there as on a host
    ring."""
    if place.memory == "pinned":
        return [pytest.mark.slow]
    return [pytest.mark.gpu] if place.on_gpu else []


@pytest.fixture(
    params=[pytest.param(place, id=place.name, marks=_marks_of(place)) for place in PLACES]
)
def place(request: pytest.FixtureRequest) -> Place:
    """The kind of memory in which the test's rings are."""
    chosen: Place = request.param
    return chosen
