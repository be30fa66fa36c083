/* Offers the slots' descriptor to the other processes of a ring. From any thread, under no lock of
 * this library. */
#pragma once

#include "ring.h"

/* The header must not be a copy. */
enum gr_result gr_offer(struct gr_ring *ring, int fd);
