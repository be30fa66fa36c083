/* A descriptor that hears of frames and, at an end that is waited out, of names. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Who waits for several endpoints, and a descriptor that was readable a moment ago, look so often. */
#define LOOK_AGAIN_NS INT64_C(50000000)

/* An epoll of the bell's descriptor, of names, and of a timer. */
struct descriptor {
    int fd, names, timer; /* -1: nobody has asked */
    bool listens;
    int64_t looked_ns;
};
#define NO_DESCRIPTOR {-1, -1, -1, false, 0}

/* Made at the first call. bell: what becomes readable with frames. -1: errno. */
int descriptor_fd(struct descriptor *of, int bell);
/* Called before each look at an end. What comes after this makes it readable. */
void listen_to_names(struct descriptor *of);
/* Between ends. */
void hear_no_names(struct descriptor *of);
/* forked: in a child, which shares it with its parent. */
void end_descriptor(struct descriptor *of, bool forked);
