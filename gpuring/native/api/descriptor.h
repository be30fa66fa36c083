/* A descriptor that becomes readable with frames and, while an end is waited out, with new names. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The time between two looks of a wait for several endpoints. If a descriptor was readable less
 * than this time ago, new names do not make it readable until the time is over. */
#define LOOK_AGAIN_NS INT64_C(50000000)

/* An epoll of the bell's descriptor, of names, and of a timer. */
struct descriptor {
    int fd, names, timer; /* -1: nobody has asked */
    bool listens;
    int64_t looked_ns;
};
#define NO_DESCRIPTOR {-1, -1, -1, false, 0}

/* The descriptor, which is made at the first call. bell: a descriptor that becomes readable with
 * frames. -1: errno. */
int descriptor_fd(struct descriptor *of, int bell);
/* Called before each look at an end. A name that comes after this call makes it readable. */
void listen_to_names(struct descriptor *of);
/* Called when the stream goes on: names do not matter until the next end. */
void hear_no_names(struct descriptor *of);
/* Closes it. forked: this is a forked child, which shares it with its parent. */
void end_descriptor(struct descriptor *of, bool forked);
