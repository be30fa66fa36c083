/* What a ring, its files and its subscriptions are called, and its peers. registry/segment.py says
 * which files there are in /dev/shm. */
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

/* The name of a subscription, zero-padded. A name with GH_ELSEWHERE before it says that the frames
 * are read on another host. Then errors and tools say where to look. */
#define GH_ELSEWHERE "bridge: "
enum { GH_SUBSCRIPTION = 64, GH_LABEL = 64 /* bytes */ };
/* GPURING_OK or GPURING_INVALID: users cannot give it such a name. */
gpuring_status gh_check_subscription(const char *name, size_t nbytes, gpuring_error *error);
/* A name for a subscription that was given none. Nobody else can join it. */
gpuring_status gh_name_none(char name[GH_SUBSCRIPTION], gpuring_error *error);
gpuring_status gh_check_label(const char *label, size_t nbytes, gpuring_error *error);
