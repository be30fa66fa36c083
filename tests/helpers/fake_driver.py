"""A GPU driver that notes its calls, fails if a test asks for it, and does nothing on its own.

`Driver.finish` lets the GPU do what was enqueued.  rig.py has rings over such a driver, and
ctrl_c.py has signals that come while a verb waits for it.
"""

from __future__ import annotations

import ctypes

from gpuring import native
from tests.helpers import raw_verbs
from tests.helpers.segment import Actor

NOT_READY, INVALID, NO_CONTEXT = 600, 400, 201
CAPTURE, CAPTURE_ELSEWHERE = 900, 906  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, _IMPLICIT
BASE = 1 << 40  # the address of the fence table on the "GPU"
P, C, D = 0x100, 0x200, 0x300  # streams
PER_THREAD = 2
CONTEXT = 0xC0
OURS = 0xE  # the first event that is no interprocess one: by which one stream follows another

_int, _u32, _u64, _p = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_KINDS = {4: "wait", 5: "write"}
_INTERPROCESS = 4
_tables = []  # A Device may be collected after its test.  It still calls the driver then.


class Op(ctypes.Structure):
    """CUstreamBatchMemOpParams as cuda.h has it."""

    _fields_ = [
        ("operation", _u32), ("_1", _u32), ("address", _u64), ("value", _u64), ("flags", _u32),
        ("_2", _u32), ("alias", _u64), ("_3", _u64),
    ]  # fmt: skip


class Handle(ctypes.Structure):
    """CUipcEventHandle.  This driver has the event in its first word."""

    _fields_ = [("event", _u64), ("_rest", ctypes.c_char * 56)]


def _put(pointer, kind, value):
    ctypes.cast(pointer, ctypes.POINTER(kind))[0] = value


class Driver:
    """`calls`: (function, stream, what), where what is {(peer, slot): value} or an event."""

    def __init__(self, segment):
        self.segment = segment
        self.calls = []
        self.errors = {}  # function -> what it returns instead of doing anything
        self.device = 0  # the current device
        self.contexts = []  # contexts that are current, or pushed and not popped
        self.writes = []  # enqueued: (peer, slot, value)
        self.pending = set()  # events
        self.queries = []  # the events that were asked
        self.stream_queries = []
        self.capturing = set()  # streams
        self.asked = []  # the streams that were asked whether they are captured
        self.ids = {}  # ids of streams whose handle was used before
        self.destroyed = []
        self.opened = []
        self.names = {}  # names of events (see event_of)
        self.on_query = lambda event: None
        self.on_stream_query = lambda stream: 0
        self.on_call = lambda name: None
        self.finishes = True
        self.refuses = {}  # slot -> what a record on it returns
        self.broken = []
        self._events = self._ours = 0
        functions = {
            "cuInit": (self._nothing, _u32),
            "cuGetErrorName": (self._get_error_name, _int, _p),
            "cuDeviceGetAttribute": (self._nothing, _p, _int, _int),
            "cuDeviceGetUuid_v2": (self._get_uuid, _p, _int),
            "cuDevicePrimaryCtxRetain": (self._retain, _p, _int),
            "cuDevicePrimaryCtxRelease_v2": (self._nothing, _int),
            "cuCtxGetDevice": (self._get_device, _p),
            "cuCtxSetCurrent": (self._set_current, _p),
            "cuCtxPushCurrent_v2": (self._push, _p),
            "cuCtxPopCurrent_v2": (self._pop, _p),
            "cuCtxSynchronize": (self._synchronize,),
            "cuMemHostRegister_v2": (self._register, _p, ctypes.c_size_t, _u32),
            "cuMemHostUnregister": (self._unregister, _p),
            "cuMemHostGetDevicePointer_v2": (self._device_pointer, _p, _p, _u32),
            "cuStreamIsCapturing": (self._is_capturing, _p, _p),
            "cuStreamGetId": (self._get_id, _p, _p),
            "cuStreamQuery": (self._stream_query, _p),
            "cuStreamWaitEvent": (self._wait_event, _p, _p, _u32),
            "cuStreamWaitValue64_v2": (self._wait_value, _p, _u64, _u64, _u32),
            "cuStreamWriteValue64_v2": (self._write_value, _p, _u64, _u64, _u32),
            "cuStreamBatchMemOp_v2": (self._batch, _p, _u32, ctypes.POINTER(Op), _u32),
            "cuEventCreate": (self._event_create, _p, _u32),
            "cuEventDestroy_v2": (self._event_destroy, _p),
            "cuEventRecord": (self._event_record, _p, _p),
            "cuEventQuery": (self._event_query, _p),
            "cuIpcGetEventHandle": (self._get_handle, _p, _p),
            "cuIpcOpenEventHandle": (self._open_handle, _p, Handle),
        }
        copies = dict.fromkeys(raw_verbs.driver_symbols(), (self._nothing,))  # never called
        self._functions = {name: self._make(*made) for name, made in (copies | functions).items()}
        _tables.append(self._functions)
        self.addresses = {
            name: ctypes.cast(made, _p).value for name, made in self._functions.items()
        }
        self.table = native.Driver(self.addresses)

    def _make(self, function, *arguments):
        name = function.__name__.strip("_")

        def called(*values):
            try:
                self.on_call(name)
                return self.errors.get(name) or function(*values) or 0
            except BaseException as error:  # ctypes would swallow it
                self.broken.append(error)
                return 999

        return ctypes.CFUNCTYPE(_int, *arguments)(called)

    def _nothing(self, *_):
        pass

    def _get_error_name(self, status, name):
        self._name = str(status).encode()
        _put(name, ctypes.c_char_p, self._name)

    # ---- contexts ----------------------------------------------------------------------------

    def _get_uuid(self, uuid, device):
        ctypes.memmove(uuid, uuid_of(device), 16)

    def _retain(self, context, _device):
        _put(context, _p, CONTEXT)

    def _get_device(self, device):
        _put(device, _int, self.device)

    def _set_current(self, context):
        self.contexts.append(context)

    def _push(self, context):
        assert context == CONTEXT
        self.contexts.append(context)

    def _pop(self, _context):
        self.contexts.pop()

    def _synchronize(self):
        pass

    def _register(self, _address, nbytes, flags):
        assert nbytes % 4096 == 0
        assert flags == 3  # portable, mapped

    def _unregister(self, _address):
        pass

    def _device_pointer(self, pointer, _address, _flags):
        _put(pointer, _u64, BASE)

    # ---- streams -----------------------------------------------------------------------------

    def _is_capturing(self, stream, status):
        self.asked.append(stream or 0)
        _put(status, _int, (stream or 0) in self.capturing)
        return CAPTURE_ELSEWHERE if not stream and self.capturing else 0

    def _get_id(self, stream, number):
        stream = stream or 0
        assert stream not in self.capturing  # it would end the capture
        assert stream != PER_THREAD
        _put(number, _u64, self.ids.get(stream, stream & ~1))

    def _stream_query(self, stream):
        """A peer that leaves queries PER_THREAD while it waits.  The GPU finishes its work then."""
        self.stream_queries.append(stream or 0)
        if (stream or 0) == PER_THREAD and self.finishes:
            self.finish()
        return self.on_stream_query(stream or 0)

    def _words(self, *ops):
        """{(peer, slot): value}"""
        words = {}
        for address, value in ops:
            assert (address - BASE) % 8 == 0
            slot, peer = divmod((address - BASE) // 8, self.segment.max_peers)
            assert slot < self.segment.slots
            assert (peer, slot) not in words
            words[peer, slot] = value
        return words

    def _write_value(self, stream, address, value, flags):
        assert flags == 0
        return self._enqueued("write", stream, self._words((address, value)))

    def _wait_value(self, stream, address, value, flags):
        assert flags == 0  # CU_STREAM_WAIT_VALUE_GEQ
        return self._enqueued("wait", stream, self._words((address, value)))

    def _batch(self, stream, n, ops, flags):
        assert flags == 0
        (kind,) = {_KINDS[op.operation] for op in ops[:n]}
        assert all(op.flags == op.alias == 0 for op in ops[:n])
        words = self._words(*((op.address, op.value) for op in ops[:n]))
        return self._enqueued(f"{kind}s", stream, words)

    def _enqueued(self, name, stream, words):
        if name.startswith("write"):
            for _, slot in words:
                if slot in self.refuses:
                    return self.refuses[slot]
        for (peer, slot), value in words.items():
            # Nobody waits for a value, or stores one, that was not promised before.
            assert raw_verbs.work(self.segment.creator, peer, slot) >= value
            if name.startswith("write"):
                self.writes.append((peer, slot, value))
        self.calls.append((name, stream or 0, words))
        return 0

    # ---- events ------------------------------------------------------------------------------

    def name(self, event):
        return self.names.get(event, event)

    def _event_create(self, event, flags):
        self._events += 1
        if not flags & _INTERPROCESS:
            self.names[self._events] = OURS + self._ours
            self._ours += 1
        _put(event, _p, self._events)

    def _event_destroy(self, event):
        self.destroyed.append(self.name(event))

    def _event_record(self, event, stream):
        event = self.name(event)
        if event >> 16 and event & 0xFFFF in self.refuses:
            return self.refuses[event & 0xFFFF]
        self.pending.add(event)
        self.calls.append(("record", stream or 0, event))
        return 0

    def _event_query(self, event):
        event = self.name(event)
        self.queries.append(event)
        self.on_query(event)
        return NOT_READY if event in self.pending else 0

    def _wait_event(self, stream, event, flags):
        assert flags == 0
        self.calls.append(("wait", stream or 0, self.name(event)))

    def _get_handle(self, handle, event):
        _put(handle, Handle, Handle(event=event))

    def _open_handle(self, event, handle):
        self.opened.append(self.name(handle.event))
        _put(event, _p, handle.event)

    def meet(self, endpoint):
        """Names the events of a peer that has joined."""
        if self.segment.creator.sync != "event":
            return
        place = self.segment.table["event"] + 64 * number_of(endpoint) * self.segment.slots
        for slot in range(self.segment.slots):
            event = int.from_bytes(
                self.segment.raw[place + 64 * slot : place + 64 * slot + 8], "little"
            )
            self.names[event] = event_of(endpoint, slot)

    # ---- for tests ---------------------------------------------------------------------------

    def finish(self, *endpoints):
        """Lets the GPU finish what was enqueued: everything, or what these peers have recorded."""
        numbers = [number_of(each) for each in endpoints] or range(self.segment.max_peers)
        for peer, slot, value in self.writes:
            if peer in numbers:
                raw_verbs.raise_fence(self.segment.creator, peer, slot, value)
        self.writes = [write for write in self.writes if write[0] not in numbers]
        everything = not endpoints
        self.pending = {
            each for each in self.pending if not everything and (each >> 16) - 1 not in numbers
        }

    def told(self):
        """The calls since the last `told()`."""
        calls, self.calls = self.calls, []
        return calls


def uuid_of(device):
    """The UUID of the GPU with this ordinal.  All processes here have the same ordinals."""
    return bytes([0xA0 + device] * 16)


def number_of(peer):
    """The number of a peer, which is an endpoint or an Actor."""
    return peer.number if isinstance(peer, Actor) else peer.peer


def event_of(peer, slot):
    return (number_of(peer) + 1) << 16 | slot


def event_waits(stream, *events):
    return [("wait", stream, event) for event in events]


def follows(stream, *others):
    """The calls by which one stream is made to wait for others."""
    return [
        call for each in others for call in (("record", each, OURS), ("wait", stream, OURS))
    ]  # fmt: skip
