/* Waiting for a name to come into /dev/shm, without looking for it again and again.
 *
 * The kernel reports every new name there (inotify). A wait sleeps until it reports one, and then
 * looks for the name that it waits for. New names of others cost a look, too, and any program may
 * make ten thousand of them. So the time between looks grows while names come one after the other.
 *
 * The kernel reports nothing if this user has the greatest allowed number of watches, or if the
 * ring changes without a new name. For these cases a wait also looks now and then.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A descriptor that becomes readable when a name comes into a folder, and stays so until
 * gh_drain_names. -1: errno, for example if this user has as many watches as he may. */
int gh_watch_names(const char *folder);
/* Reads and forgets the reports so far, at most as many as the kernel keeps. */
void gh_drain_names(int watch);

enum { GH_FIRST_LOOK_NS = 10 * 1000 * 1000 };
#define GH_LOOK_NS INT64_C(1000000000)

/* When to look. */
struct gh_pace {
    int64_t look_ns;    /* a wait that nothing ends looks after so long; the next one after twice */
    int64_t longest_ns; /* … and at most after so long */
    int64_t rest_ns;
    bool going;
};
/* watched: whether the kernel reports names. */
void gh_begin_pace(struct gh_pace *pace, bool watched);
/* Called before a wait, when nothing was found. going: a ring was found that is about to be
 * removed. The kernel may not report that, so the next looks come soon after each other again. */
void gh_missed(struct gh_pace *pace, bool going);
/* For how long to rest before the next look, after a wait of waited_ns. told: a new name has ended
 * the wait. */
int64_t gh_rest_ns(struct gh_pace *pace, bool told, int64_t waited_ns);

/* All of it, for a caller that waits for a name and nothing else. */
struct gh_arrivals {
    struct gh_pace pace;
    int watch; /* -1: none */
    bool begun;
};
/* Returns when it is time to look again, and after at_most_ns at the latest. The first call returns
 * at once, because a name may have come before the watch was there. other: another descriptor that
 * ends the wait when it is readable; -1: none. */
void gh_await_name(struct gh_arrivals *arrivals, bool going, int other, int64_t at_most_ns);
void gh_end_arrivals(struct gh_arrivals *arrivals);
