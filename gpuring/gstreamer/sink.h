#pragma once
#include <gst/gst.h>
#define GPURING_TYPE_SINK (gpuring_sink_get_type())
GType gpuring_sink_get_type(void);
