/* What the device order was refused, in words. */
#pragma once

#include "../device/state.h"
#include "gpu.h"

/* GPURING_DEVICE. device: that of the process, or what it would have been. */
gpuring_status gm_fail_trouble(gpuring_error *error, const struct gd_device *device,
                               const struct gd_trouble *trouble);
