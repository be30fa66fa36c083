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

static void post(GstElement *element, GstMessageType type, const gpuring_error *error) {
    gst_element_message_full(element, type, GST_RESOURCE_ERROR, code_of(error->status),
                             g_strdup(error->text), g_strdup(gpuring_status_name(error->status)),
                             __FILE__, G_STRFUNC, __LINE__);
}

void post_error(GstElement *element, const gpuring_error *error) {
    post(element, GST_MESSAGE_ERROR, error);
}

void post_info(GstElement *element, const gpuring_error *error) {
    post(element, GST_MESSAGE_INFO, error);
}
