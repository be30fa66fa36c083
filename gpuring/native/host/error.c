/* What a call that has failed says, in words. */
#define _GNU_SOURCE
#include "error.h"

#include <stdarg.h>
#include <string.h>

#include "text.h"

gpuring_status gh_fail(gpuring_error *error, gpuring_status status, const char *format, ...) {
    gpuring_error said = {.status = status}; /* an argument may be the text of the last one */
    va_list arguments;
    va_start(arguments, format);
    struct gh_text text = gh_begin_text(said.text, sizeof said.text);
    gh_add_list(&text, format, arguments);
    va_end(arguments);
    *error = said;
    return status;
}

gpuring_status gh_fail_system(gpuring_error *error, int sys_errno, const char *what) {
    /* strerrordesc_np is too new, and strerror is not for several threads. */
    char words[128];
    const char *told = strerror_r(sys_errno, words, sizeof words);
    gh_fail(error, GPURING_SYSTEM, "%s: %s", told, what);
    error->sys_errno = sys_errno;
    return GPURING_SYSTEM;
}
