#include "trouble.h"

#include <stdio.h>

enum { PROCESS_LIMIT = 4096 }; /* interprocess events of one process, about (driver 580) */

gpuring_status gm_fail_trouble(gpuring_error *error, const struct gd_device *device,
                               const struct gd_trouble *trouble) {
    const struct gr_ring *ring = device->ring;
    /* It may have been closed by another thread. */
    const char *name = device->driver ? gd_status_name(device->driver, trouble->status)
                                      : "CUDA_ERROR_INVALID_CONTEXT";
    const int gpu = device->ordinal, status = trouble->status;
    const uint32_t peer = trouble->peer, index = trouble->index;
    const unsigned long long value = trouble->value;
    char stream[32];
    snprintf(stream, sizeof stream, "stream %#llx", (unsigned long long)trouble->stream);
    if (trouble->stream == 0) snprintf(stream, sizeof stream, "stream 0x0");
    switch (trouble->where) {
    case GD_CAPTURED:
        return gm_fail(error, status,
                       "%s is being captured into a CUDA graph, or is the default stream while "
                       "another one is (%s). Handing a slot over cannot be part of a graph: claim, "
                       "publish, acquire and release outside the capture (a slot that you have "
                       "stays yours), or on another stream. Capture the work between, one "
                       "graph for each slot (docs/streams.md, CUDA graphs)",
                       stream, name);
    case GD_OTHER_DEVICE:
        return gm_fail(error, status,
                       "the default stream of GPU %llu was given (it is current), but this handle of "
                       "the ring was attached under GPU %d. Give a stream explicitly, or work inside "
                       "`with cupy.cuda.Device(%d):` or `with torch.cuda.device(%d):`",
                       value, gpu, gpu, gpu);
    case GD_NO_CONTEXT: return gm_fail(error, status, "GPU %d cannot be used (%s)", gpu, name);
    case GD_OPEN_EVENT:
        return gm_fail(error, status,
                       "peer %u's event for slot %u cannot be opened (%s; pid %llu). Both processes "
                       "must share /dev/shm and the host's pid and IPC namespaces",
                       peer, index, name,
                       peer < ring->max_peers
                           ? (unsigned long long)gr_load_acquire(&ring->peer[peer].pid)
                           : 0);
    case GD_MAKE_EVENTS:
        return gm_fail(error, status,
                       "peer %u needs an interprocess event for each slot, but only %llu could be made (%s). "
                       "This process has made %u, about %d is the limit: use fewer slots, fewer "
                       "peers in one process, or `sync` timeline",
                       peer, value, name, device->driver->made_count, PROCESS_LIMIT);
    case GD_WORK_FAILED:
        return gm_fail(error, status, "peer %u's GPU work on slot %u (fence %llu) has failed: %s",
                       peer, index, value, name);
    case GD_NOT_NOW:
        return gm_fail(error, status,
                       "GPU %d cannot be waited for while a thread captures a CUDA graph (%s). Try "
                       "again when the capture has ended",
                       gpu, name);
    case GD_REGISTER:
        return gm_fail(error, status,
                       "the ring's header cannot be mapped into GPU %d (%s). Create the ring with "
                       "`sync` event",
                       gpu, name);
    case GD_NO_MEMORY:
        return gm_fail(error, status, "there is no memory left to note which streams and events a "
                                      "slot is used with");
    default:
        return gm_fail(error, status,
                       "%s does not take the ring's waits and records (%s); is it a stream of GPU "
                       "%d?",
                       stream, name, gpu);
    }
}
