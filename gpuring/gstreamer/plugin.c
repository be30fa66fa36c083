#include "sink.h"
#include "src.h"

/* GStreamer caches the caps of the elements. With this it looks again when one of these libraries
 * is installed or removed. */
static void depend_on_cuda(GstPlugin *plugin) {
    gst_plugin_add_dependency_simple(
        plugin, "LD_LIBRARY_PATH",
        "/usr/lib/x86_64-linux-gnu,/usr/lib/aarch64-linux-gnu,/usr/lib64,/usr/lib,/usr/local/lib",
        "libcuda.so.1,libgstcuda-1.0.so.0", GST_PLUGIN_DEPENDENCY_FLAG_NONE);
}

static gboolean init(GstPlugin *plugin) {
    depend_on_cuda(plugin);
    return gst_element_register(plugin, "gpuringsrc", GST_RANK_NONE, GPURING_TYPE_SRC) &&
           gst_element_register(plugin, "gpuringsink", GST_RANK_NONE, GPURING_TYPE_SINK);
}

#define PACKAGE "gpuring"

GST_PLUGIN_DEFINE(GST_VERSION_MAJOR, GST_VERSION_MINOR, gpuring,
                  "Frames of shared-memory rings, which other processes read and write", init,
                  GPURING_VERSION, "Apache 2.0", "gpuring", "gpuring")
