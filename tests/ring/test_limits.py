"""The limits that the pages give: so many are accepted, and one more is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import gpuring
from gpuring import slot_layout
from gpuring.memory import cuda, frameworks, kinds
from gpuring.ring import creation
from tests import ROOT
from tests.helpers import commands
from tests.helpers.compiled import BUILD_S, CC, needs_compiler
from tests.helpers.processes import PATIENCE_S
from tests.helpers.promise import promise
from tests.helpers.rings import segments_of
from tests.memory.fake_gpu import Gpu, forget

INTEGRATED, VIRTUAL_MEMORY = 18, (102, 103)  # CUdevice_attribute
SMALL = {"slots": 2, "shape": 4, "dtype": "u1", "device": "host"}


def put(producer):
    with producer.claim(0) as slot:
        return slot.seq


@promise("limits.md", "A ring has 1 to 1,024 slots.")
@pytest.mark.parametrize("slots", [1, 1024])
def test_1_to_1024_slots_and_no_more(name, slots):
    with gpuring.create(name, **SMALL | {"slots": slots}) as ring, ring.producer() as producer:
        frames = ring.consumer()
        seqs = [put(producer) for _ in range(slots)]
        with pytest.raises(gpuring.RingFull):
            producer.claim(0)
        with frames.acquire_many(slots, 0) as batch:
            assert [slot.seq for slot in batch] == seqs
        assert put(producer) == seqs[-1] + 1
    for wrong in (0, 1025):
        with pytest.raises(ValueError, match=r"slots must be 1 … 1024"):
            gpuring.create(name, **SMALL | {"slots": wrong})


@promise("limits.md", "It has at most 250 peers and 250 subscriptions.")
def test_250_peers_and_250_subscriptions_and_no_more(name):
    with gpuring.create(name, **SMALL, max_peers=250, max_subscriptions=250) as ring:
        readers = [ring.consumer(f"s{k}") for k in range(250)]
        with pytest.raises(gpuring.TooManyPeers, match="all 250 entries"):
            ring.producer()
        readers.pop().close()
        with ring.producer() as producer:
            seq = put(producer)
            assert {reader.acquire(0).seq for reader in readers} == {seq}
    with gpuring.create(name, **SMALL, max_peers=250, max_subscriptions=249) as ring:
        readers = [ring.consumer(f"s{k}") for k in range(249)]
        with pytest.raises(gpuring.TooManyPeers, match="all 249 subscriptions"):
            ring.consumer("one more")
    for wrong in ({"max_peers": 251}, {"max_subscriptions": 251}, {"max_peers": 0}):
        with pytest.raises(ValueError, match=r"must be 1 … 250"):
            gpuring.create(name, **SMALL, **wrong)


@promise(
    "limits.md",
    "By default it has room for 32 peers and 16 subscriptions.",
    "`max_peers=` and `max_subscriptions=` of `create` change that.",
)
def test_32_peers_and_16_subscriptions_by_default(name):
    with gpuring.create(name, **SMALL) as ring:
        readers = [ring.consumer() for _ in range(16)]
        with pytest.raises(gpuring.TooManyPeers, match=r"16 subscriptions.*`max_subscriptions`"):
            ring.consumer()
        producers = [ring.producer() for _ in range(32 - len(readers))]
        with pytest.raises(gpuring.TooManyPeers, match=r"32 entries.*`max_peers`"):
            ring.producer()
        assert len(readers + producers) == 32
    with gpuring.create(name, **SMALL, max_peers=33, max_subscriptions=17) as ring:
        readers = [ring.consumer() for _ in range(17)]
        producers = [ring.producer() for _ in range(33 - len(readers))]
        assert len(readers + producers) == 33


@promise("limits.md", "A frame has at most 64 KiB of metadata.")
def test_64_kib_of_metadata_and_no_more(name):
    most = np.dtype([("bytes", "u1", 2**16)])
    with gpuring.create(name, **SMALL, meta=most) as ring:
        frames, producer = ring.consumer(), ring.producer()
        for value in (1, 2, 3):
            with producer.claim(0) as slot:
                slot.meta["bytes"] = value
            with frames.acquire(0) as slot:
                assert (slot.meta["bytes"] == value).all()
    with pytest.raises(ValueError, match="metadata has at most 65536 bytes"):
        gpuring.create(name, **SMALL, meta=[("bytes", "u1", 2**16 + 1)])
    assert segments_of(name) == []


# ---- how often somebody looks ------------------------------------------------------------------


@promise(
    "architecture.md",
    "A watchdog also looks by itself, 20 ms after a join at first. While nobody joins, the "
    "interval grows to a second. A waiting call also looks by itself, after 50 ms at first. In a "
    "long wait the interval grows to a second.",
    "Peers in another pid namespace are looked at every 20 ms, unless they have handed their pidfd "
    "over.",
)
def test_ticks_and_slices_are_as_long_as_the_page_says():
    """Reads the source, because a clock is not exact enough."""
    watchdog = (ROOT / "gpuring/native/core/watchdog.c").read_text()
    wait = (ROOT / "gpuring/native/core/wait.h").read_text()
    assert "TICK_MS = 20, LONG_TICK_MS = 1000," in watchdog
    assert "define GR_SLICE_NS (INT64_C(50) * 1000 * 1000)" in wait
    assert "define GR_SLICE_MAX_NS (GR_SLICE_NS > GR_SECOND_NS ?" in wait


# ---- who may attach ----------------------------------------------------------------------------


def attaches_as_nobody(_pipe, name, owner):
    os.setresuid(65534, 65534, 65534)
    try:
        with gpuring.attach(name, owner=owner) as ring, ring.producer() as producer:
            slots = [producer.claim(0) for _ in range(ring.slots)]
            for slot in slots:
                slot.array[:] = 9
                slot.publish()
            return "wrote every slot"
    except PermissionError:
        return "refused"


@promise("limits.md", "By default only one user may attach, because the mode of the files is 0600.")
@promise(
    "trust.md",
    "The owner and the mode of the ring's files decide who can be a peer.",
)
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_by_default_a_ring_is_one_users(name, children):
    with gpuring.create(name, **SMALL):
        modes = [Path("/dev/shm", each).stat().st_mode & 0o777 for each in segments_of(name)]
        assert modes == [0o600, 0o600]
        for owner in (None, 0):
            assert children(attaches_as_nobody, name, owner).result() == "refused"


@promise("limits.md", "Peers trust each other: whoever may attach may write every slot.")
@promise(
    "trust.md",
    "Peers of a ring trust each other.",
    "All peers map the header for reading and writing, and may map the slots in the same way.",
    "**A user who may write the files** (for example with mode 0666) can be a peer. They can hand "
    "out wrong frames, make claims void or take them, mark frames as torn, and block everybody.",
)
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_who_may_attach_may_write_every_slot(name, children):
    with gpuring.create(name, **SMALL, mode=0o666) as ring, ring.consumer() as frames:
        assert children(attaches_as_nobody, name, 0).result() == "wrote every slot"
        for slot in frames.acquire_many(2, 10):
            assert slot.array.tolist() == [9] * 4


# ---- what is read from shared memory -----------------------------------------------------------


@promise(
    "trust.md",
    "Nothing pickled is ever read from shared memory.",
)
def test_nothing_of_the_package_can_unpickle():
    """The only exceptions are the batches of a DataLoader, which come through torch's pipes."""
    package = Path(gpuring.__file__).parent
    through_pipes = {package / "torch" / name for name in ("parcel.py", "queues.py")}
    files = sorted({*package.rglob("*.py")} - through_pipes)
    assert len(files) > 50
    unpickles = r"^\s*(?:import|from)\b.*\b(?:_?pickle|cPickle|marshal|shelve|dill)\b|np\.load"
    for path in files:
        assert not re.search(unpickles, path.read_text(), re.M), path


@promise(
    "trust.md",
    "Metadata is the raw bytes of a dtype without objects.",
)
def test_metadata_has_no_objects(name):
    with pytest.raises(ValueError, match="Python objects"):
        gpuring.create(name, **SMALL, meta=[("a", "O")])
    made = slot_layout.make(shape=4, dtype="u1", meta=[("a", "i8")]).to_bytes()
    assert made.count(b'"<i8"') == 1
    with pytest.raises(ValueError, match="cannot be read"):
        slot_layout.Spec.from_bytes(made.replace(b'"<i8"', b'"|O"'))


# ---- GPUs, as far as they can be told without one ----------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that has virtual memory."""
    made = Gpu()
    made.put_in_place(monkeypatch)
    made.attributes = dict.fromkeys(VIRTUAL_MEMORY, 1)
    monkeypatch.setattr(frameworks, "current_device", lambda: 0)
    yield made
    forget()


@pytest.fixture(params=["Tegra", "WSL2"])
def without_ipc(request, gpu, monkeypatch, tmp_path):
    """A GPU without legacy CUDA IPC."""
    if request.param == "Tegra":
        gpu.attributes[INTEGRATED] = 1
    else:
        release = tmp_path / "osrelease"
        release.write_text("5.15.90.1-microsoft-standard-WSL2\n")
        monkeypatch.setattr(cuda, "Path", lambda _: release)
    return request.param


@promise(
    "limits.md",
    "It was not tried on WSL2 or on Tegra/Jetson, which have no legacy CUDA IPC and [get another "
    "kind of memory](memory.md#what-auto-takes).",
)
@pytest.mark.parametrize("has_vmm", [True, False])
def test_auto_takes_what_a_gpu_without_ipc_has(without_ipc, gpu, has_vmm):
    gpu.attributes |= dict.fromkeys(VIRTUAL_MEMORY, int(has_vmm))
    taken, why = kinds.choose("auto", 0)
    assert taken == ("vmm" if has_vmm else "pinned")
    assert without_ipc in why
    assert ("cannot share virtual memory" in why) is not has_vmm


def test_events_where_auto_takes_pinned_are_refused_with_what_to_do(without_ipc, gpu, name):
    gpu.attributes |= dict.fromkeys(VIRTUAL_MEMORY, 0)
    with pytest.raises(ValueError, match="peers without a GPU have no events") as caught:
        gpuring.create(name, **SMALL | {"device": "cuda", "sync": "event"})
    said = str(caught.value)
    assert said.startswith('memory="auto" takes "pinned" here (')
    assert without_ipc in said
    assert said.endswith("Leave sync= out")
    assert segments_of(name) == []


def test_ipc_that_was_asked_for_is_refused_without_ipc(without_ipc, name):
    with pytest.raises(gpuring.DeviceError, match=without_ipc):
        gpuring.create(name, **SMALL | {"device": "cuda", "memory": "ipc"})
    assert segments_of(name) == []


@pytest.mark.parametrize(
    ("contained", "has_vmm", "kind"),
    [(False, True, "ipc"), (False, False, "ipc"), (True, True, "vmm"), (True, False, "ipc")],
)
def test_auto_takes_vmm_in_a_container_that_has_it(gpu, monkeypatch, contained, has_vmm, kind):
    monkeypatch.setattr(kinds, "in_container", lambda: contained)
    gpu.attributes |= dict.fromkeys(VIRTUAL_MEMORY, int(has_vmm))
    taken, why = kinds.choose("auto", 0)
    assert taken == kind
    assert ("of its own" in why) is contained
    assert ("cannot share virtual memory" in why) is (contained and not has_vmm)


def test_a_kind_that_was_asked_for_is_taken_or_refused(gpu, monkeypatch):
    assert kinds.choose("ipc", 0)[0] == "ipc"
    for able in (True, False):
        monkeypatch.setattr(kinds, "supported", lambda *_, able=able: (able, "the GPU has none"))
        if able:
            assert kinds.choose("vmm", 0)[0] == "vmm"
        else:
            with pytest.raises(gpuring.DeviceError, match="the GPU has none"):
                kinds.choose("vmm", 0)


def test_kinds_of_memory_are_for_gpus(name):
    with pytest.raises(ValueError, match='memory must be "auto", "ipc", "vmm", "pool" or "pinned"'):
        gpuring.create(name, **SMALL, memory="cuda")
    with pytest.raises(ValueError, match="for GPU rings"):
        gpuring.create(name, **SMALL, memory="vmm")
    with gpuring.create(name, **SMALL):
        with pytest.raises(TypeError, match="takes no device"):
            gpuring.attach(name, device=0)
        gpuring.attach(name).close()


@promise(
    "limits.md",
    '`sync="auto"` never chooses this pair, unless you ask for `gate="stream"` where there is no '
    "timeline.",
)
@promise(
    "failure.md",
    "It goes on: a survivor stores the word. | nothing",
    "There is none, as above. | a thread polls",
)
@pytest.mark.parametrize("timeline", [True, False])
def test_auto_waits_for_no_event_in_a_stream(gpu, monkeypatch, timeline):
    monkeypatch.setattr(cuda, "timeline_supported", lambda _: (timeline, "no reason"))
    new = slot_layout.make(shape=4, dtype="u1"), 0
    chosen = creation._order_on_gpu(*new, "auto", None)
    assert chosen == (("timeline", "stream") if timeline else ("event", "host"))
    by_name = creation._order_on_gpu(*new, "auto", "stream")
    assert by_name == ("timeline" if timeline else "event", "stream")


ELSEWHERE = """
try:
    import gpuring
except ImportError:
    print("refused", flush=True)
"""
INTERPRETERS = f"""
import gpuring
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
interpreters.run_string(interpreters.create(), {ELSEWHERE!r})
gpuring.create({{!r}}, slots=2, shape=4, dtype="u1", device="host").close()
"""


@promise(
    "limits.md",
    "One interpreter of a process can use gpuring. In a second one the import raises "
    "`ImportError`.",
)
def test_a_second_interpreter_of_a_process_is_refused(name):
    ran = commands.python(INTERPRETERS.format(name))
    assert (ran.returncode, ran.stdout) == (0, "refused\n"), ran.stderr


EMBEDS = """
#include <Python.h>
int main(int argc, char **argv) {
    for (int k = 0; k < argc; k++) {
        Py_Initialize();
        PyRun_SimpleString(argv[1]);
        Py_Finalize();
    }
}
"""


@needs_compiler
def test_an_interpreter_behind_one_that_has_ended_is_refused(tmp_path):
    folder, version = (sysconfig.get_config_var(each) for each in ("LIBDIR", "LDVERSION"))
    if not Path(folder, f"libpython{version}.so").exists():
        pytest.skip("Python cannot be embedded here")
    (tmp_path / "it.c").write_text(EMBEDS)
    command = [CC, f"-I{sysconfig.get_path('include')}", "it.c", "-o", "it", f"-L{folder}"]
    command += [f"-lpython{version}", f"-Wl,-rpath,{folder}"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=BUILD_S)
    found = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.check_output(
        [tmp_path / "it", f"{ELSEWHERE}else:\n    print('imported', flush=True)"],
        env=found, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert told.split() == ["imported", "refused"]
