/* What the environment of a process says to all of its peers. */
#define _GNU_SOURCE
#include "environment.h"

#include <ctype.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

enum { SHOWN = 128 };

/* With a point, whatever locale the program has. *end is `text` if it is none. */
static double decimal(const char *text, char **end) {
    double value = -1;
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    *end = (char *)text;
    if (!plain) return value;
    if (!strpbrk(text, "xX")) value = strtod_l(text, end, plain);
    freelocale(plain);
    return value;
}

gpuring_status gh_spin_ns(int64_t *ns, gpuring_error *error) {
    const char *text = getenv("GPURING_SPIN");
    char *end, shown[SHOWN];
    *ns = -1;
    while (text && isspace((unsigned char)*text)) text++;
    if (!text || !*text) return GPURING_OK;
    const double seconds = decimal(text, &end);
    while (isspace((unsigned char)*end)) end++;
    if (end != text && !*end && seconds >= 0) {
        *ns = seconds > 9e9 ? INT64_MAX : (int64_t)(seconds * 1e9);
        return GPURING_OK;
    }
    size_t nbytes = 0;
    while (text[nbytes]) nbytes++;
    return gh_fail(error, GPURING_INVALID,
                   "the environment has GPURING_SPIN='%s', but it must be a number of seconds, such as "
                   "\"0.002\", or \"inf\"",
                   gh_printable(shown, sizeof shown, text, nbytes));
}
