/* What the files of a ring are called. */
#include "names.h"

#include <stdio.h>
#include <string.h>

#include "text.h"

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool gh_is_name(const char *name, size_t nbytes) {
    if (nbytes < 1 || nbytes > GH_MAX_NAME || !is_word(name[0])) return false;
    for (size_t k = 1; k < nbytes; k++)
        if (!is_word(name[k]) && name[k] != '.' && name[k] != '-') return false;
    return true;
}

gpuring_status gh_check_name(const char *name, size_t nbytes, gpuring_error *error) {
    char shown[2 * GH_MAX_NAME];
    if (gh_is_name(name, nbytes)) return GPURING_OK;
    return gh_fail(error, GPURING_INVALID,
                   "'%s' cannot name a ring: use 1 to %d letters, digits, '_', '-' or '.', "
                   "beginning with a letter, a digit or '_' (so no slash)",
                   gh_printable(shown, sizeof shown, name, nbytes), GH_MAX_NAME);
}

void gh_header_path(const char *name, char path[GH_PATH]) {
    snprintf(path, GH_PATH, GH_SHM "/gpuring.%s", name);
}

void gh_slots_path(const char *name, const uint8_t epoch[16], char path[GH_PATH]) {
    int n = snprintf(path, GH_PATH, GH_SHM "/gpuring.%s+", name);
    for (int k = 0; k < 16; k++, n += 2) snprintf(path + n, (size_t)(GH_PATH - n), "%02x", epoch[k]);
}
