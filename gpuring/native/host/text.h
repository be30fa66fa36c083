/* Text that others have chosen, as it may be logged and shown. */
#pragma once

#include <stddef.h>

/* Writes `nbytes` of text, and a zero, into `room` bytes. What is no UTF-8 becomes U+FFFD. Line
 * ends, escape codes of terminals and marks that turn the direction of writing are escaped, as "\n"
 * and "\x1b" are here, as printable.py does. So nobody else writes lines of a log. Returns `to`. */
char *gh_printable(char *to, size_t room, const char *text, size_t nbytes);
