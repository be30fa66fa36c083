#pragma once
#include <gst/gst.h>
#define GPURING_TYPE_SRC (gpuring_src_get_type())
GType gpuring_src_get_type(void);
