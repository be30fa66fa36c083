#include "sink.h"
#include "src.h"

static gboolean init(GstPlugin *plugin) {
    return gst_element_register(plugin, "gpuringsrc", GST_RANK_NONE, GPURING_TYPE_SRC) &&
           gst_element_register(plugin, "gpuringsink", GST_RANK_NONE, GPURING_TYPE_SINK);
}

#define PACKAGE "gpuring"

GST_PLUGIN_DEFINE(GST_VERSION_MAJOR, GST_VERSION_MINOR, gpuring,
                  "Frames of shared-memory rings, which other processes read and write", init,
                  GPURING_VERSION, "Apache 2.0", "gpuring", "gpuring")
