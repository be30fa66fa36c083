/* A copy that goes past the caches. */
#pragma once

#include <stddef.h>

void gr_copy_streamed(void *to, const void *from, size_t nbytes);
