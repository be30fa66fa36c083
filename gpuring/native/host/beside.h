/* The files beside the header of a ring: its slots, and headers that are about to get its name or
 * have lost it and are still needed (debts.h). */
#pragma once

#include "names.h"

/* Those that were there at a moment. What comes later is not among them. */
struct gh_beside {
    uint32_t n;
    struct gh_beside_file {
        char path[GH_PATH];
        bool goes, gone; /* of gh_remove_left */
    } * file;
};
/* 0, or -1: errno. Without a folder there are none. */
int gh_list_beside(const char *name, struct gh_beside *beside);
void gh_end_beside(struct gh_beside *beside);

/* The path of a header that does not have the name of its ring. `number` is random, so that no
 * other process can take the path first. */
void gh_aside_path(const char *name, const uint8_t number[16], char path[GH_PATH]);
bool gh_is_aside(const char *path);

/* The user id of the file that has the name. -1: there is none, -2: errno. */
int64_t gh_owner_of(const char *path);
/* Whether a file is ours, and nobody is making it just now. If so, its ring has its name by now or
 * will never have it, so a look at the name tells which. */
bool gh_is_left(const char *path);
/* Removes slots, if they are ours. 1, 0: they are not there, -1: errno. */
int gh_remove_slots(const char *path);
