/* What a ring, its files and its subscriptions are called, and its peers. */
#include "names.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

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

static const char unnamed = '#';

gpuring_status gh_check_subscription(const char *name, size_t nbytes, gpuring_error *error) {
    char shown[2 * GH_SUBSCRIPTION];
    if (!gh_is_utf8(name, nbytes))
        return gh_fail(error, GPURING_INVALID, "a subscription's name is UTF-8, and not '%s'",
                       gh_printable(shown, sizeof shown, name, nbytes));
    if (nbytes == 0 || name[0] == unnamed || memchr(name, 0, nbytes))
        return gh_fail(error, GPURING_INVALID,
                       "'%s' cannot name a subscription ('#\xe2\x80\xa6' is for unnamed ones)",
                       gh_printable(shown, sizeof shown, name, nbytes));
    if (nbytes > GH_SUBSCRIPTION)
        return gh_fail(error, GPURING_INVALID,
                       "a subscription's name has at most %d bytes, not %zu", GH_SUBSCRIPTION,
                       nbytes);
    return GPURING_OK;
}

gpuring_status gh_name_none(char name[GH_SUBSCRIPTION], gpuring_error *error) {
    uint32_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return gh_fail_system(error, errno, "a random number");
    memset(name, 0, GH_SUBSCRIPTION);
    snprintf(name, GH_SUBSCRIPTION, "%c%08x", unnamed, number);
    return GPURING_OK;
}

gpuring_status gh_check_label(const char *label, size_t nbytes, gpuring_error *error) {
    char shown[2 * GH_LABEL];
    if (nbytes <= GH_LABEL && !memchr(label, 0, nbytes) && gh_is_utf8(label, nbytes))
        return GPURING_OK;
    return gh_fail(error, GPURING_INVALID,
                   "a label has at most %d bytes of UTF-8 and no zero byte, not '%s'", GH_LABEL,
                   gh_printable(shown, sizeof shown, label, nbytes));
}
