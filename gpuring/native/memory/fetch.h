/* The descriptor of a ring's slots, from a process that has it. */
#pragma once

#include "../core/exchange_fetch.h"
#include "../host/error.h"

enum { GM_FETCH_S = 5 }; /* how long those who are in a ring may take to hand its memory on */

/* GPURING_PEER_LOST if nobody new can open the memory of a ring, because its creator is dead. */
gpuring_status gm_check_creator(const char *name, struct gr_ring *ring, gpuring_error *error);

/* Why no process has handed the descriptor on. gone: there is no process to ask (GPURING_PEER_LOST).
 * Otherwise none has answered within timeout_s (GPURING_TIMEOUT). */
gpuring_status gm_fail_fetch(gpuring_error *error, const struct gr_fetch *fetch, bool gone,
                             double timeout_s);
/* Waits for it, for GM_FETCH_S at most. Close *fd with gr_close_aside. name: for the words. Also
 * GPURING_FORKED, GPURING_SYSTEM. */
gpuring_status gm_fetch(const char *name, struct gr_ring *ring, int *fd, gpuring_error *error);
