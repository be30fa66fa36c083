/* What the files of a ring are called. Those of /dev/shm are described in registry/segment.py. */
#pragma once

#include <stdbool.h>

#include "error.h"

#define GH_SHM "/dev/shm"
enum { GH_MAX_NAME = 128, GH_PATH = 256 /* room for a path, and its zero */ };

/* Whether a ring can have this name: 1 to 128 letters, digits, '_', '-' or '.', the first one of
 * which is a letter, a digit or '_'. */
bool gh_is_name(const char *name, size_t nbytes);
/* GPURING_OK or GPURING_INVALID. */
gpuring_status gh_check_name(const char *name, size_t nbytes, gpuring_error *error);
/* The path of the header that has the ring's name, and that of the slots of this epoch. */
void gh_header_path(const char *name, char path[GH_PATH]);
void gh_slots_path(const char *name, const uint8_t epoch[16], char path[GH_PATH]);
