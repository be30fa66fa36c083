/* Headers: created, attached to, copied. Called by whoever opens rings, before any peer joins. */
#pragma once

#include "ring.h"

struct gr_ring *gr_create(int fd, const struct gr_config *config, const uint8_t epoch[16],
                          const uint8_t device_uuid[16],
                          const uint8_t memory_handle[GR_MEMORY_HANDLE], const void *spec);
struct gr_ring *gr_attach(int fd, const char **why, char *text, size_t text_nbytes);
/* Reads a copy, for getters only. */
struct gr_ring *gr_read(int fd, const char **why, char *text, size_t text_nbytes);
void gr_retire(struct gr_ring *ring); /* sets magic to 0, so that nobody attaches any more */
int gr_again(int fd, int flags);
bool gr_check(int fd, struct gr_config *config, struct gr_layout *layout, const char **why,
              char *text, size_t text_nbytes);
