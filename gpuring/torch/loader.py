"""DataLoader, in the main process.

It is torch's own class with torch's own iterator and workers.  The samplers, seeds, index queues,
errors and the end of workers are torch's.  Two places differ: the collate_fn of a worker puts the
batch into a slot (packing.py), and what comes out of the queue is made a batch again (inlet.py).
Names of torch that are not public are used here, in packing.py, in inlet.py and in places.py, and
nowhere else.
"""

from __future__ import annotations

import collections
import copy
import itertools
import os
import reprlib
from multiprocessing.connection import wait
from typing import Any, TypeVar

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils import data
from torch.utils.data import _utils, dataloader

from gpuring.errors import DeviceError, FrameTorn, PeerLost
from gpuring.torch import progress
from gpuring.torch.inlet import Inlet, Need
from gpuring.torch.packing import Packing
from gpuring.torch.parcel import Parcel, is_laid, put_together, take_apart
from gpuring.torch.progress import Progress, Task
from gpuring.torch.queues import FromThread, with_queues
from gpuring.torch.starting import Start

T_co = TypeVar("T_co", covariant=True)

DEATH_S = 1.0
"""For how long a worker whose connections have ended may still seem to be alive."""

NOT_STARTED = (
    "Its own traceback, further up, says why. A worker that is not forked imports the program "
    'again. So the code that begins a loop has to stand under `if __name__ == "__main__":`, and '
    "the dataset in a file that can be imported."
)


class DataLoader(data.DataLoader[T_co]):
    """torch's DataLoader, whose workers hand batches over through slots.

    It takes all arguments of torch.utils.data.DataLoader, and they mean the same.

    * `device`: "cuda" or "cuda:1" gives the tensors of a batch on that GPU, in order of torch's
      current stream there.  "cuda" is the current one when a loop begins.  pin_memory then has
      nothing to do.  Raises DeviceError if torch finds no such GPU.  None, "host" or "cpu" leaves
      them where the workers have made them, as torch does.

    Tensors that a worker makes on a GPU do not pass through host memory.  Such a worker has to be
    spawned.

    A batch has memory of its own, so it may be kept.  Tensors are laid out without gaps.  What
    cannot lie in a slot (sparse and quantized tensors, those that require a gradient) travels as in
    torch, and stays in host memory.  If a worker is killed, the RuntimeError says which sample it
    was at.
    """

    def __init__(
        self,
        dataset: data.Dataset[T_co],
        *args: Any,
        device: str | torch.device | None = None,
        **kwargs: Any,
    ) -> None:
        self.device = _gpu(device)
        if self.device is not None:
            _check_there(self.device)
        self._need = Need()
        super().__init__(dataset, *args, **kwargs)

    def __iter__(self) -> Any:
        if isinstance(self._iterator, _OverWorkers) and self._iterator.broken:
            self._iterator._shutdown_workers()  # persistent ones
            self._iterator = None
        return super().__iter__()

    def _get_iterator(self) -> Any:
        if self.device is None and not self.num_workers:
            return super()._get_iterator()
        loader = copy.copy(self)  # for the iterator, which reads its attributes
        if self.device is not None:
            loader.pin_memory = False
            if self.device.index is None:
                loader.device = torch.device("cuda", torch.cuda.current_device())
        if not self.num_workers:
            return _InThisProcess(loader)
        self.check_worker_number_rationality()
        return _OverWorkers(loader)


def _gpu(device: str | torch.device | None) -> torch.device | None:
    """None: host memory, as gpuring and torch call it.  Raises ValueError for other devices."""
    if device in (None, "host"):
        return None
    try:
        found = torch.device(device)
    except RuntimeError:  # of torch, for words that it does not know
        found = None
    if found is None or found.type not in ("cuda", "cpu"):
        raise ValueError(f'device must be "cuda", "cuda:N", "host", "cpu" or None, not {device!r}')
    return found if found.type == "cuda" else None


def _check_there(gpu: torch.device) -> None:
    if not torch.backends.cuda.is_built():
        raise DeviceError("this torch has no CUDA: leave device= out")
    count = torch.cuda.device_count()  # does not begin CUDA, so workers can still be forked
    if (gpu.index or 0) >= count:
        there = f"{count} GPU{'s'[: count > 1]}" if count else "no GPU"
        raise DeviceError(f'device="{gpu}": torch finds {there} here')


class _InThisProcess(dataloader._SingleProcessDataLoaderIter):
    """For num_workers=0, with a device."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._device = loader.device

    def _next_data(self) -> Any:
        rest, leaves = take_apart(super()._next_data(), _is_array)
        return put_together(rest, [self._moved(leaf) for leaf in leaves])

    def _moved(self, leaf: Any) -> Any:
        """What workers would lay into a slot."""
        if not is_laid(leaf):
            return leaf
        return leaf.resolve_conj().resolve_neg().to(self._device)


def _goes_over_samples(loader: DataLoader[Any]) -> bool:
    """Whether workers go over the samples of a batch from one to the next."""
    dataset = loader.dataset
    if type(dataset) is data.Subset:  # it does so where the dataset below would
        dataset = dataset.dataset
    return loader._auto_collation and not callable(getattr(dataset, "__getitems__", None))


def _is_array(obj: Any) -> bool:
    return isinstance(obj, (torch.Tensor, np.ndarray))


class _ToWorker:
    """The queue to a worker."""

    def __init__(self, queue: Any, number: int, inlet: Inlet) -> None:
        self._queue, self._number, self._inlet = queue, number, inlet
        self.cancel_join_thread, self.close = queue.cancel_join_thread, queue.close

    def put(self, what: Any) -> None:
        if isinstance(what, tuple):  # it is asked for a batch
            self._inlet.prepare(self._number)
        self._queue.put(what)


class _OverWorkers(dataloader._MultiProcessingDataLoaderIter):
    def __init__(self, loader: DataLoader[Any]) -> None:
        self._owner = os.getpid()
        on_gpu = loader.device is not None
        slots = min((loader.prefetch_factor or 0) + 1, 1024)  # one is being copied
        self._inlet = Inlet(loader._need, loader.num_workers, slots, loader.device)
        self._taken = [collections.deque[Any](maxlen=slots) for _ in range(loader.num_workers)]
        """For each worker: the last batches that were taken from it, with their parts."""
        self._asked: dict[int, Any] = {}
        """The samples of the batches that workers may be at."""
        packing = Packing(
            loader.collate_fn, self._inlet.name, arrays=not on_gpu, known=loader._need.known()
        )
        loader.collate_fn = packing
        loader.multiprocessing_context = with_queues(loader.multiprocessing_context)
        self._progress = Progress(loader.num_workers)
        loader.worker_init_fn = Start(self._progress, packing, loader.worker_init_fn)
        self._broken = False
        """Whether an interrupt may have lost a batch."""
        self._one_by_one = _goes_over_samples(loader)
        super().__init__(loader)
        if self._pin_memory:
            self._data_queue: Any = FromThread(self._data_queue)

    @property
    def broken(self) -> bool:
        """Whether another loop needs other workers."""
        return self._broken or any(worker.exitcode is not None for worker in self._workers)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._broken = not first_iter
        if first_iter:
            self._index_queues: list[Any] = [
                _ToWorker(each, number, self._inlet)
                for number, each in enumerate(self._index_queues)
            ]
            results: Any = self._worker_result_queue
            results.passes_errors_on = self._pin_memory
        super()._reset(loader, first_iter)
        self._broken = False

    def _next_index(self) -> Any:
        index = super()._next_index()
        self._asked[self._send_idx] = index
        self._asked.pop(self._send_idx - 4 * self._num_workers * self._prefetch_factor, None)
        one_by_one = self._one_by_one and type(index) is list
        return Task(self._send_idx, index, one_by_one=one_by_one)

    def _get_data(self) -> Any:
        number, batch = super()._get_data()
        if isinstance(batch, Parcel):
            self._taken[batch.worker].append((number, batch.parts))
            try:
                batch = self._inlet.open(batch, pinned=False)
            except (PeerLost, FrameTorn) as error:
                pid = self._workers[batch.worker].pid
                raise RuntimeError(
                    f"DataLoader worker (pid(s) {pid}) was killed before its GPU had made a batch"
                ) from error
            except Exception:  # such as no memory: raised when it is the turn of the batch
                batch = ExceptionWrapper(where="in the main process of DataLoader")
        return number, batch

    def _try_get_data(self, timeout: float = _utils.MP_STATUS_CHECK_INTERVAL) -> Any:
        try:
            return super()._try_get_data(timeout)
        except (OSError, EOFError) as error:
            # Tensors that had no slot are fetched from their worker.  It may be about to end.
            working = [*itertools.compress(self._workers, self._workers_status)]
            ended = wait([worker.sentinel for worker in working], DEATH_S)
            gone = [worker for worker in working if worker.sentinel in ended]
            if not gone:
                raise
            for worker in gone:
                worker.join()  # it closes its files before it has an exit code
            pids = ", ".join(str(worker.pid) for worker in gone)
            raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly") from error

    def __next__(self) -> Any:
        if self._broken:
            raise RuntimeError(
                "this iterator of a DataLoader was interrupted while it took a batch, which may be "
                "lost. Begin another loop"
            )
        self._data_queue.waits = False
        try:
            return self._step()
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker") or not (where := self._deaths()):
                raise
            raise RuntimeError(f"{str(error).rstrip().rstrip('.')}. {where}") from error
        except Exception:
            raise
        except BaseException:
            self._broken = not self._data_queue.waits
            raise

    def _step(self) -> Any:
        """torch's __next__, without its entry for a profiler where none runs.  The entry takes as
        long as to read a message."""
        if torch._C._autograd._profiler_enabled() or self._IterableDataset_len_called is not None:
            return super().__next__()  # the length may have been wrong, and it warns then
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def _deaths(self) -> str:
        """What the workers that did not end cleanly were at, and what they have not delivered."""
        said, has_failed = [], False
        for number, worker in enumerate(self._workers):
            if worker.exitcode:
                missing = [task for task, info in self._task_info.items() if info == (number,)]
                said.append(
                    f"Worker {number} (pid {worker.pid}) {self._was_at(number, missing)}, and had "
                    f"not delivered {self._named(missing) or 'anything that is waited for'}."
                )
                torn = self._inlet.torn(number)
                unfinished = [
                    task
                    for task, parts in self._taken[number]
                    if not torn.isdisjoint((part.place, part.seq) for part in parts)
                ]
                if unfinished:
                    said.append(f"Its GPU had not made what came as {self._named(unfinished)}.")
                has_failed |= self._has_failed_to_start(number)
        if has_failed:
            said.append(NOT_STARTED)
        return " ".join(said)

    def _named(self, tasks: list[int]) -> str:
        return " and ".join(
            f"batch {task} (samples {reprlib.repr(self._asked.get(task))})" for task in tasks
        )

    def _has_failed_to_start(self, worker: int) -> bool:
        return self._workers[worker].exitcode == 1 and self._progress.place(worker).task < 0

    def _was_at(self, worker: int, missing: list[int]) -> str:
        """`missing`: the batches that it had not delivered."""
        if self._has_failed_to_start(worker):
            return "was starting"
        task, before, step, phase = self._progress.place(worker)
        if task not in missing:
            return "was at no sample"
        if phase != progress.LOADS:
            return f"{'was collating' if phase == progress.COLLATES else 'had packed'} batch {task}"
        if self._dataset_kind == dataloader._DatasetKind.Iterable:
            return f"was at the sample after {before + step} others, in batch {task}"
        asked = self._asked.get(task)
        if not self._auto_collation:
            return f"was at sample {reprlib.repr(asked)}"
        if type(asked) is list and self._one_by_one:
            return f"was at sample {reprlib.repr(asked[step])}, in batch {task}"
        return f"was at one of the samples of batch {task}"

    def _shutdown_workers(self) -> None:
        if self._owner != os.getpid():  # the copy of a forked child, such as another loop's worker
            return
        # When the interpreter ends, all rings are closed anyway, and torch's thread for pinned
        # memory may have stopped for ever in the middle of a batch.
        goes_on = _utils is not None and _utils.python_exit_status is False
        try:
            if goes_on:
                self._inlet.close()
        finally:
            super()._shutdown_workers()
            if goes_on:
                self._inlet.give_memory_back()
