/* What the files of the puppet have in common. puppet.c says what it is. */
#pragma once

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../gpuring/include/gpuring.h"

enum { MOST = 16 };

struct endpoint {
    gpuring_producer *producer;
    gpuring_consumer *consumer;
    gpuring_slot slots[MOST];
    uint32_t n;
};
extern struct endpoint ends[MOST];
extern gpuring_ring *ring;
extern gpuring_error error;

/* Options for rings that are created or attached, and for peers that join, from now on. */
struct place {
    gpuring_memory memory;
    int device;
    gpuring_sync sync;
    gpuring_gate gate;
    void *given;
    uint64_t given_nbytes;
};
extern struct place place;

/* The next word of a command, as it is or as what it means. */
const char *word(void);
int64_t number(void);
struct endpoint *endpoint(void);
void answer(gpuring_status status);

/* false: it is no command of puppet_ring.c, puppet_misuse.c or puppet_gpu.c. */
bool obey_on_ring(const char *verb);
bool obey_misuse(const char *verb);
bool obey_on_gpu(const char *verb);
