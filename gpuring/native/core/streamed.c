/* A copy that goes past the caches.
 *
 * An ordinary store first reads the line that it is about to overwrite. Where a copy is larger than
 * the caches that is a third of its traffic, and one core copies half as much again without it.
 * glibc's memcpy does so only for single copies of many MiB, and a batch is many smaller ones. */
#include "streamed.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) /* all of x86-64 */
#include <emmintrin.h>

void gr_copy_streamed(void *to, const void *from, size_t nbytes) {
    char *out = to;
    const char *in = from;
    size_t head = (64 - ((uintptr_t)out & 63)) & 63;
    if (head > nbytes)
        head = nbytes;
    memcpy(out, in, head);
    out += head, in += head, nbytes -= head;
    for (; nbytes >= 64; out += 64, in += 64, nbytes -= 64)
        for (int k = 0; k < 4; k++)
            _mm_stream_si128((__m128i *)out + k, _mm_loadu_si128((const __m128i *)in + k));
    memcpy(out, in, nbytes);
    _mm_sfence(); /* before whatever publishes it */
}
#else
void gr_copy_streamed(void *to, const void *from, size_t nbytes) {
    memcpy(to, from, nbytes);
}
#endif
