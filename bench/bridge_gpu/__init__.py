"""Ways to carry a GPU frame from ring to ring, and kills of a bridge, on GPUs of one host.

    python -m bench.bridge_gpu [--json FILE] [--host]

Frames have 16 MiB, and every word of them is checked on the GPU.

    frames.py    the rings, and the frames with their checks
    facts.py     what the machine says of itself
    floors.py    a plain copy between the two memories, and raw blocking sockets
    alone.py     the NIXL engine without a bridge
    whole.py     bridges from ring to ring, in each kind of memory, also with their workers killed

Where a second GPU is there, frames go across the two as well.  It takes less than two minutes.  A
part that fails does not stop the others, and the file says why it has no figure.  `--host` runs all
of it in host memory.
"""
