#include "words.h"

#include <stdarg.h>

void tell(gpuring_error *error, gpuring_status status, const char *format, ...) {
    va_list values;
    va_start(values, format);
    error->status = status;
    g_vsnprintf(error->text, sizeof error->text, format, values);
    va_end(values);
}

static gint code_of(gpuring_status status) {
    switch (status) {
    case GPURING_NOT_FOUND: return GST_RESOURCE_ERROR_NOT_FOUND;
    case GPURING_NOT_PERMITTED: return GST_RESOURCE_ERROR_NOT_AUTHORIZED;
    case GPURING_EXISTS:
    case GPURING_TIMEOUT:
    case GPURING_FULL: return GST_RESOURCE_ERROR_BUSY;
    case GPURING_NO_ROOM: return GST_RESOURCE_ERROR_NO_SPACE_LEFT;
    case GPURING_INVALID: return GST_RESOURCE_ERROR_SETTINGS;
    default: return GST_RESOURCE_ERROR_FAILED;
    }
}

/* Of warnings and infos gst-launch shows the second text only. So that one has the words, too. */
static void post(GstElement *element, GstMessageType type, const gpuring_error *error) {
    const gchar *name = gpuring_status_name(error->status);
    gchar *more = type == GST_MESSAGE_ERROR ? g_strdup(name)
                                            : g_strdup_printf("%s: %s", name, error->text);
    gst_element_message_full(element, type, GST_RESOURCE_ERROR, code_of(error->status),
                             g_strdup(error->text), more, __FILE__, G_STRFUNC, __LINE__);
}

void post_error(GstElement *element, const gpuring_error *error) {
    post(element, GST_MESSAGE_ERROR, error);
}

GstFlowReturn flow_of(GstElement *element, gpuring_status status, const gpuring_error *error) {
    switch ((gint)status) {
    case GPURING_OK: return GST_FLOW_OK;
    case (gint)CANCELLED: return GST_FLOW_FLUSHING;
    default: post_error(element, error); return GST_FLOW_ERROR;
    }
}

gboolean may_set(GstElement *element, const GParamSpec *property) {
    if (MAX(GST_STATE(element), GST_STATE_NEXT(element)) <= GST_STATE_READY) return TRUE;
    g_warning("%s: `%s` can be changed in the states NULL and READY only, so it stays as it is",
              GST_OBJECT_NAME(element), property->name);
    return FALSE;
}

gboolean may_start(GstElement *element, const gchar *name, gdouble timeout_s) {
    const gchar *who = GST_OBJECT_NAME(gst_element_get_factory(element));
    gpuring_error error;
    if (name && (timeout_s >= 0 || timeout_s == -1)) return TRUE;
    if (!name) tell(&error, GPURING_INVALID, "%s needs the name of a ring: ring=", who);
    else
        tell(&error, GPURING_INVALID,
             "%s has timeout=%g, and of the numbers below 0 only -1 means something: for ever", who,
             timeout_s);
    post_error(element, &error);
    return FALSE;
}

void post_warning(GstElement *element, const gpuring_error *error) {
    post(element, GST_MESSAGE_WARNING, error);
}

void post_info(GstElement *element, const gpuring_error *error) {
    post(element, GST_MESSAGE_INFO, error);
}
