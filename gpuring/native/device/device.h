/* The device order of a ring in one process, and that of a peer: opened and closed. One thread at
 * a time. */
#pragma once

#include "state.h"

/* GR_OK or GR_DEVICE. Makes no peer. */
enum gr_result gd_open(struct gd_device *device, struct gd_driver *driver, struct gr_ring *ring,
                       int ordinal, struct gd_trouble *trouble);
/* Waits for this process's work on the GPU. False: some thread is capturing a stream, and the header
 * must stay mapped for good. */
bool gd_close(struct gd_device *device);

/* GR_OK, GR_SYSTEM (errno ENOMEM) or GR_DEVICE. `peer->core` has joined. device is NULL if the peer
 * uses the slots by the CPU. Then it has no stream, and always waits on the host. */
enum gr_result gd_prepare(struct gd_peer *peer, struct gd_device *device, bool gate_host,
                          struct gd_trouble *trouble);
/* Frees what gd_prepare made. The peer has left or is dead. */
void gd_dispose(struct gd_peer *peer);
