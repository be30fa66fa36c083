/* Sockets at which the processes of a ring hand its slots on (core/exchange_socket.c), and which
 * killed processes have left. */
#pragma once

#include "names.h"

/* Removes the sockets of a directory at which nobody listens, and the directory with the last one.
 * only_look: says whether it would be removed. False: some of them are in use, or the directory is
 * not there, or is not ours. */
bool gh_tidy_sockets(const char *folder, bool only_look);
/* The same for those of a ring. */
bool gh_tidy_sockets_of(const uint8_t epoch[16]);
