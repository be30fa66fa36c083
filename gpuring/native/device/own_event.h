/* Events that this process made. Under no mutex of a device or of the driver, except gd_made_here,
 * which may be called under a device's. The results are the driver's. */
#pragma once

#include "state.h"

int gd_take_own_event(struct gd_device *device, struct gd_own_event **taken);
/* The event whose handle that is, if it was made here; else NULL. */
void *gd_made_here(struct gd_driver *driver, const struct gd_ipc_handle *handle);

int gd_take_spare(struct gd_device *device, struct gd_own_event **spare);
void gd_give_spare(struct gd_device *device, struct gd_own_event *spare);
void gd_drop_spares(struct gd_device *device);
