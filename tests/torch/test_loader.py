"""gpuring.torch.DataLoader gives the same batches as torch's."""

from __future__ import annotations

import gc
import multiprocessing
import shutil
import subprocess
import sys
import warnings
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.utils.data
from torch.utils.data._utils import collate

import gpuring
from gpuring.torch import DataLoader, inlet, outlet, parcel
from gpuring.torch.places import HOST
from tests.helpers.commands import environment
from tests.helpers.processes import PATIENCE_S, open_files, poll
from tests.torch import datasets
from tests.torch.batches import same


def both(*args: Any, epochs: int = 1, **options: Any) -> tuple[list[Any], list[Any]]:
    """The batches of both loaders."""
    found: list[list[Any]] = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        torch.manual_seed(7)
        loader = kind(*args, **options)
        found.append([list(loader) for _ in range(epochs)])
    return found[0], found[1]


@pytest.fixture(autouse=True)
def leaves_nothing():
    yield
    gc.collect()
    assert not datasets.rings()


@pytest.fixture
def laid(monkeypatch):
    """How many batches came in a slot, and how many otherwise."""
    counts = {True: 0, False: 0}
    opened = inlet.Inlet.open

    def counting(self: Any, arrived: parcel.Parcel, *, pinned: bool) -> Any:
        counts[arrived.leaves is None] += 1
        return opened(self, arrived, pinned=pinned)

    monkeypatch.setattr(inlet.Inlet, "open", counting)
    return counts


def test_structures(laid):
    expected, found = both(datasets.Structures(), 4, num_workers=2, epochs=2)
    assert same(expected, found)
    assert laid[True] >= 10  # in the second epoch the size of a batch is known
    assert laid[True] + laid[False] == 20


@pytest.mark.parametrize(
    "collate", [datasets.as_list, datasets.as_box, datasets.as_record, datasets.odd]
)
def test_own_collate(collate, laid):
    expected, found = both(datasets.Numbered(), 4, num_workers=2, collate_fn=collate, epochs=2)
    if collate is datasets.odd:
        for batches in (*expected, *found):  # torch sends its whole storage
            for batch in batches:
                batch["every other"] = batch["every other"].contiguous()
                batch["expanded"] = batch["expanded"].contiguous()
                del batch["conjugate"]
    assert same(expected, found)
    assert laid[True] >= 10


def test_what_is_one_tensor_stays_one():
    for batch in DataLoader(datasets.Numbered(), 4, num_workers=1, collate_fn=datasets.odd):
        assert batch["same"][0] is batch["same"][1]
        assert batch["last"].is_contiguous(memory_format=torch.channels_last)
        assert batch["transposed"].stride() == (5, 15, 1) or len(batch["last"]) != 4


@pytest.mark.parametrize(
    "context", ["fork", pytest.param("spawn", marks=pytest.mark.slow), "forkserver"]
)
def test_each_way_to_start_workers_gives_the_same_batches(context, laid):
    expected = list(torch.utils.data.DataLoader(datasets.Numbered(), 3))
    loader = DataLoader(datasets.Numbered(), 3, num_workers=2, multiprocessing_context=context)
    assert same([expected] * 2, [list(loader) for _ in range(2)])
    assert laid[True]


def test_seeds_and_order():
    for more in ({"shuffle": True}, {"sampler": [5, 3, 3, 1] * 5}, {"drop_last": True}):
        expected, found = both(datasets.Random(), 3, num_workers=2, epochs=2, **more)
        assert same(expected, found)


def test_batch_sampler_and_no_batches():
    sampler = [[1, 2], [3], [9, 8, 7]] * 4
    assert same(*both(datasets.Numbered(), batch_sampler=sampler, num_workers=2, epochs=2))
    assert same(*both(datasets.Numbered(), None, num_workers=2, epochs=2))


@pytest.mark.parametrize("persistent", [False, True])
def test_iterable_workers_that_end_at_different_times(persistent):
    options = {"num_workers": 3, "persistent_workers": persistent, "epochs": 3}
    assert same(*both(datasets.Stream(), 2, **options))
    assert same(*both(datasets.Stream(), None, **options))


def test_ragged_batches_get_larger_rings(laid):
    expected, found = both(datasets.Ragged(60), 1, num_workers=2)
    assert same(expected, found)
    assert laid[True] > 10
    assert laid[False] > 2


def test_more_batches_than_slots_may_be_kept():
    kept = list(DataLoader(datasets.Numbered(400), 2, num_workers=2))
    assert [int(batch[1][0]) for batch in kept] == list(range(0, 400, 2))
    assert all((batch[0][0] == k * 2 % 251).all() for k, batch in enumerate(kept))


def test_a_kept_label_does_not_keep_the_images():
    for images, labels in DataLoader(datasets.Numbered(40, 300, 300), 4, num_workers=1):
        assert labels.untyped_storage().nbytes() <= parcel.SMALL_NBYTES
        assert images.untyped_storage().nbytes() == images.nbytes


def test_tensors_of_a_batch_are_changed_on_their_own():
    for a, b in DataLoader(datasets.Random(), 4, num_workers=1, collate_fn=two_small):
        weights = torch.ones(3, requires_grad=True)
        loss = (weights * a).sum()
        b.add_(1)  # autograd would complain if it took them for views of one tensor
        loss.backward()


def two_small(samples: Any) -> Any:
    return samples[0][0], samples[1][0]


def test_a_profiler_sees_each_step():
    steps = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        with torch.profiler.profile() as profile:
            list(kind(datasets.Numbered(), 4, num_workers=1))
        counts = {each.key: each.count for each in profile.key_averages()}
        steps += [counts[key] for key in counts if key.startswith("enumerate(DataLoader)")]
    assert steps == [11, 11]  # the last step is the end


def test_a_dataset_that_is_longer_than_it_says_is_warned_of():
    loader = DataLoader(datasets.Longer(), 2, num_workers=1)
    assert len(loader) == 1
    with pytest.warns(UserWarning, match="3 samples have been fetched"):
        assert len(list(loader)) == 3


def test_persistent_workers_after_epochs_that_were_given_up():
    loader = DataLoader(datasets.Numbered(), 2, num_workers=2, persistent_workers=True)
    for length in (1, 3, 7):
        for number, (_, k) in enumerate(loader):
            assert k.tolist() == [2 * number, 2 * number + 1]
            if number == length:
                break
    assert [int(k[0]) for _, k in loader] == list(range(0, 40, 2))


def test_two_loops_at_once():
    loader = DataLoader(datasets.Numbered(), 2, num_workers=1)
    list(loader)
    assert all(same(a, b) for a, b in zip(loader, loader, strict=True))


def test_batches_in_any_order_come_once_each():
    loader = DataLoader(datasets.Numbered(), 2, num_workers=2, in_order=False)
    assert sorted(int(k[0]) for _, k in loader) == list(range(0, 40, 2))


def test_an_error_of_a_worker_comes_where_torch_raises_it():
    texts = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        batches = iter(kind(datasets.Wrong(), 4, num_workers=2))
        seen = [next(batches)[1].tolist() for _ in range(3)]
        with pytest.raises(KeyError, match="in DataLoader worker process 1") as caught:
            next(batches)
        seen += [k.tolist() for _, k in batches]
        texts.append((seen, caught.value.args[0].splitlines()[0]))
    assert texts[0] == texts[1]


def test_an_error_that_cannot_be_pickled_is_a_runtime_error_with_its_text():
    """torch's own loader would wait for the batch for ever."""
    batches = iter(DataLoader(datasets.WrongInItsOwnWay(), 4, num_workers=2, timeout=20))
    seen = [next(batches)[1].tolist() for _ in range(3)]
    with pytest.raises(RuntimeError, match=r"(?s)worker process 1\..*OfNoModuleError: sample 13"):
        next(batches)
    seen += [k.tolist() for _, k in batches]
    assert seen == [[*range(k, k + 4)] for k in range(0, 40, 4) if k != 12]


def test_a_copy_that_fails_is_an_error_of_its_batch(monkeypatch):
    """That happens if a GPU has no memory left.  The loop goes on."""
    opened = inlet.Inlet.open

    def refusing(self: Any, arrived: parcel.Parcel, *, pinned: bool) -> Any:
        batch = opened(self, arrived, pinned=pinned)
        if batch[1][0] == 12:
            raise MemoryError("no room")
        return batch

    monkeypatch.setattr(inlet.Inlet, "open", refusing)
    batches = iter(DataLoader(datasets.Numbered(), 4, num_workers=2, timeout=20))
    seen = [next(batches)[1].tolist() for _ in range(3)]
    with pytest.raises(MemoryError, match="no room"):
        next(batches)
    seen += [k.tolist() for _, k in batches]
    assert seen == [[*range(k, k + 4)] for k in range(0, 40, 4) if k != 12]


def test_without_workers_it_is_torchs_own():
    assert same(*both(datasets.Structures(), 4))


def test_without_workers_the_device_reaches_into_objects():
    """The device is torch's "meta", which shows what would be moved."""
    loader: Any = DataLoader(datasets.Numbered(), 4, collate_fn=datasets.as_record)
    loader.device = torch.device("meta", 0)
    for record in loader:
        assert type(record) is type(record.rest["inner"]) is datasets.Record
        assert record.rest["labels"][0] is record.rest["labels"][1]
        moved = (record.images, record.rest["labels"][0], record.rest["inner"].images)
        assert all(each.is_meta for each in moved)
        stays = (record.rest["sparse"], record.rest["gradient"])  # as where workers make batches
        assert not any(each.is_meta for each in stays)
        assert record.rest["array"].tolist() == [0, 1, 2]


def test_without_room_for_a_ring_batches_travel_as_in_torch(monkeypatch, laid):
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(inlet, "create", refuse)
    with pytest.warns(RuntimeWarning, match="travel as in torch"):
        expected, found = both(datasets.Numbered(), 3, num_workers=2)
    assert same(expected, found)
    assert not laid[True]


WITHOUT_ROOM = """
from gpuring.torch import DataLoader
from tests.torch import datasets

loader = DataLoader(
    datasets.Numbered(40, 3, 300, 300), 8, num_workers=2, collate_fn=datasets.as_list
)
try:
    list(loader)
except RuntimeError as error:
    print("unable to allocate shared memory" in str(error))
"""


def test_without_any_room_in_dev_shm_the_loop_raises():
    """torch's queue would drop the batch, and the loop would wait for ever."""
    mounting = ["unshare", "--mount", "sh", "-c"]
    mounting += ['mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*mounting, "true"], check=False).returncode:
        pytest.skip("no mount namespaces here")
    done = subprocess.run(
        [*mounting, sys.executable, "-c", WITHOUT_ROOM],
        env=environment(),
        timeout=PATIENCE_S,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True"]


@pytest.mark.parametrize("device", ["xpu", "gpu", "cuda:x"])
def test_an_argument_that_is_no_gpu(device):
    with pytest.raises(ValueError, match=f'"cuda", "cuda:N", "host", .* not {device!r}'):
        DataLoader(datasets.Numbered(), device=device)


@pytest.mark.parametrize("device", [None, "host", "cpu", torch.device("cpu")])
def test_host_memory_by_its_names(device):
    images, _ = next(iter(DataLoader(datasets.Numbered(), 2, num_workers=1, device=device)))
    assert images.device == torch.device("cpu")


def descriptors() -> int:
    gc.collect()
    return len(open_files())


@pytest.mark.slow
def test_many_short_epochs_leave_nothing():
    loader = DataLoader(datasets.Numbered(8), 2, num_workers=1)
    list(loader)
    list(loader)
    before = descriptors()
    for _ in range(200):
        assert len(list(loader)) == 4
    assert poll(lambda: descriptors() <= before)
    assert not datasets.rings()
    assert not multiprocessing.active_children()


def test_a_loop_that_is_left_warns_of_nothing(recwarn):
    warnings.simplefilter("always", ResourceWarning)
    loader = DataLoader(datasets.Ragged(20), 1, num_workers=1)
    for _ in loader:
        break
    list(loader)
    del loader
    gc.collect()
    assert [str(each.message) for each in recwarn if "Deprecat" not in each.category.__name__] == []


class Box:
    """The result of a user's own collate function."""

    def __init__(self, k: int) -> None:
        self.x = torch.arange(16.0).reshape(4, 4) + 100 * k


VIEWS = {
    "gaps": lambda x: [x, x[..., ::2]],
    "begin": lambda x: [x, x[:1, :1]],
    "odd byte": lambda x: [x.flatten().view(torch.uint8)[1:9], torch.arange(3.0)],
    "conjugate": lambda x: [torch.conj(x * 1j)],
}


@pytest.mark.parametrize("what", VIEWS)
def test_views_of_what_was_collated_arrive_as_they_are(laid, monkeypatch, what):
    """The views are of the slot, where the samples were stacked."""

    def views(boxes: list[Box], *, collate_fn_map: Any = None) -> Any:
        x = collate.collate([box.x for box in boxes], collate_fn_map=collate_fn_map)
        return VIEWS[what](x)

    monkeypatch.setitem(collate.default_collate_fn_map, Box, views)
    boxes = [Box(k) for k in range(96)]
    loader = DataLoader(boxes, 4, num_workers=2, multiprocessing_context="fork")
    for k, batch in enumerate(loader):
        wanted = views(boxes[4 * k : 4 * k + 4], collate_fn_map=collate.default_collate_fn_map)
        for found, each in zip(batch, wanted, strict=True):
            assert found.tolist() == each.resolve_conj().tolist()
    assert laid[True]


def test_a_ring_that_nobody_reads_yet_is_not_used(name):
    """A worker may find its ring before the main process has joined as its consumer."""
    with gpuring.create(name, slots=2, shape=16, dtype="u1", device="host") as ring:
        with pytest.raises(gpuring.RingError, match="no reader yet"):
            outlet.Outlet(name, HOST)
        with ring.consumer():
            outlet.Outlet(name, HOST).close()


@pytest.mark.parametrize(
    ("built", "count", "device", "why"),
    [
        (False, 0, "cuda", "this torch has no CUDA"),
        (True, 0, "cuda", "torch finds no GPU here"),
        (True, 1, "cuda:1", 'device="cuda:1": torch finds 1 GPU here'),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_refused(monkeypatch, built, count, device, why):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(gpuring.DeviceError, match=why):
        DataLoader(datasets.Numbered(), device=device)
