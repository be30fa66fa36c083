/* Text that others have chosen, as it may be logged and shown. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/* Text that is put together. What is longer than the room for it ends with "…". */
struct gh_text {
    char *begin;
    size_t room, nbytes;
};
static inline struct gh_text gh_begin_text(char *begin, size_t room) {
    *begin = 0;
    return (struct gh_text){.begin = begin, .room = room};
}
void gh_add(struct gh_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void gh_add_list(struct gh_text *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

/* Whether it is UTF-8. */
bool gh_is_utf8(const char *text, size_t nbytes);
/* Writes `nbytes` of text, and a zero, into `room` bytes. What is no UTF-8 becomes U+FFFD. Line
 * ends, escape codes of terminals and marks that turn the direction of writing are escaped, as "\n"
 * and "\x1b" are here, as printable.py does. So nobody else writes lines of a log. Returns `to`. */
char *gh_printable(char *to, size_t room, const char *text, size_t nbytes);
