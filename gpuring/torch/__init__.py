"""torch: batches of torch's DataLoader by way of slots.

    loader.py     DataLoader, and its iterators in the main process
    packing.py    a worker lays batches into slots
    stacking.py   … the samples of one into one tensor
    parcel.py     a batch taken apart: what lies in a slot, and what goes through the queue
    inlet.py      the main process's end of the workers' rings
    queues.py     requests to workers, and results from them
    progress.py   what each worker is at

Each worker has a ring of its own, which the main process makes.  What a worker has no slot for
travels as in torch.  The page "Loading data" has the whole of it.  Needs `gpuring[torch]`.
"""

from gpuring.torch.loader import DataLoader

__all__ = ["DataLoader"]
