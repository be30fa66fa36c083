/* What a call that has failed says, in words. */
#define _GNU_SOURCE
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cuts no character of UTF-8 in two. */
static void mark_cut(char *text, size_t room) {
    size_t n = room - 4; /* room for the mark */
    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
    memcpy(text + n, "\xe2\x80\xa6", 4); /* … */
}

gpuring_status gh_fail(gpuring_error *error, gpuring_status status, const char *format, ...) {
    gpuring_error said = {.status = status}; /* an argument may be the text of the last one */
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(said.text, sizeof said.text, format, arguments);
    va_end(arguments);
    if (n >= (int)sizeof said.text) mark_cut(said.text, sizeof said.text);
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
