"""A slot, or one field of it, as other libraries see it: the protocols of DLPack and of the array interfaces.

What they answer is made in gpuring/arrays/interchange.py.  An answer orders streams, and changes nothing else.
"""
from gpuring.arrays import interchange


cdef class Exported:
    """The protocols, over one array of a slot.  Whoever derives from it says which, in `_exported`."""

    def _exported(self):
        """The array as it is now.  Raises RingError if the slot is no longer yours."""
        raise AssertionError("a slot and a field of it each have their own")

    def __dlpack_device__(self):
        """DLPack's (device type, number): (1, 0) in host memory, (2, ordinal) on a GPU."""
        return interchange.device_of(self._exported())

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A DLPack capsule, which `torch.from_dlpack(slot)` asks for.

        * `stream`: the importer's stream.  It is made to wait for all work on the slot so far, and
          the next user of the slot waits for it.  None and 1 are the legacy default stream, and 2
          is the per-thread one.  With -1 nothing is ordered.
        * `max_version`: from (1, 0) on the capsule is versioned, and says whether it is read-only.
        * `dl_device`: None or the device of the slot.
        * `copy`: True makes a copy.  None and False make none.

        The tensor is valid as long as the slot is yours.  Raises BufferError for what cannot be
        exported: another device, a dtype that DLPack does not have, stream=0, which means nothing.
        """
        return interchange.capsule(self._exported(), stream, max_version, dl_device, copy)

    @property
    def __cuda_array_interface__(self):
        """Version 3 of CUDA's array interface.  Its stream is the slot's, behind all work on it so
        far."""
        return interchange.cuda_interface(self._exported())

    @property
    def __array_interface__(self):
        """Version 3 of NumPy's array interface.  Only slots of host rings have it, and only with a
        dtype that NumPy has."""
        return interchange.numpy_interface(self._exported())

    @property
    def __array__(self):
        """What `np.asarray(slot)` calls for a dtype that NumPy does not have, such as "bfloat16".  Only
        slots of host rings have it.  The array is a view of the slot."""
        return interchange.numpy_array(self._exported())


cdef class SlotField(Exported):
    """One field of a slot, as other libraries see it.  `Slot.field` makes it."""

    cdef object _slot
    cdef str _name

    def __init__(self, slot, str name not None):
        self._slot, self._name = slot, name

    def _exported(self):
        return self._slot._exported_as(self._name)

    def __repr__(self):
        return f"<SlotField {self._name!r} of {self._slot!r}>"
