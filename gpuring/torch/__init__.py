"""torch: batches of torch's DataLoader by way of slots.

    loader.py     DataLoader, and its iterators in the main process
    packing.py    a worker lays batches into slots
    draft.py      … one of them, by the places in which its tensors lie
    stacking.py   … the samples of one into one tensor
    outlet.py     a worker's end of its rings
    parcel.py     a batch taken apart: what lies in slots, and what goes through the queue
    places.py     host memory and GPUs; what is asked of torch's CUDA
    inlet.py      the main process's end of the workers' rings
    queues.py     requests to workers, and results from them
    progress.py   what each worker is at
    starting.py   what a worker does first

Each worker has a ring of its own for host memory, and one for each GPU on which its tensors lie.
The main process makes them.  What a worker has no slot for travels as in torch.  The page "Loading
data" describes it in full.  Needs `gpuring[torch]`.
"""

from gpuring.torch.loader import DataLoader

__all__ = ["DataLoader"]


def __dir__() -> list[str]:
    return __all__
