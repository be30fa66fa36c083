/* Posts errors of gpuring.h on the bus. */
#pragma once

#include <gpuring.h>
#include <gst/gst.h>

/* unlock() was called, so the streaming thread has to return. Nothing has failed. */
#define CANCELLED ((gpuring_status)-1)

void tell(gpuring_error *error, gpuring_status status, const char *format, ...)
    G_GNUC_PRINTF(3, 4);
/* Posts a message with the words of the library. */
void post_error(GstElement *element, const gpuring_error *error);
/* What the streaming thread returns for a status of the library. An error is posted. */
GstFlowReturn flow_of(GstElement *element, gpuring_status status, const gpuring_error *error);
/* Whether this property may be set now: the streaming thread uses it without a lock. If not, GLib
 * prints a warning. */
gboolean may_set(GstElement *element, const GParamSpec *property);
/* Whether the element has the name of its ring, and a timeout that means something. If not, an error is
 * posted. */
gboolean may_start(GstElement *element, const gchar *name, gdouble timeout_s);
void post_warning(GstElement *element, const gpuring_error *error);
void post_info(GstElement *element, const gpuring_error *error);
