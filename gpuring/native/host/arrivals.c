/* Waiting for a name to come into /dev/shm. */
#define _GNU_SOURCE
#include "arrivals.h"

#include <errno.h>
#include <poll.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include "../core/bell.h"
#include "names.h"

enum {
    BLIND_LOOK_NS = 100 * 1000 * 1000, /* the longest time between two looks without reports */
    /* A look less than QUIET_NS after another one first rests for REST_NS. The rest doubles each
     * time, up to MAX_REST_NS. */
    QUIET_NS = 100 * 1000 * 1000,
    REST_NS = 20 * 1000,
    MAX_REST_NS = 64 * 1000 * 1000,
};

int gh_watch_names(const char *folder) {
    const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watch < 0) return -1;
    if (inotify_add_watch(watch, folder, IN_CREATE | IN_MOVED_TO | IN_ONLYDIR) >= 0) return watch;
    const int error = errno;
    close(watch);
    errno = error;
    return -1;
}

void gh_drain_names(int watch) {
    char events[16384];
    for (int k = 0; k < 64 && read(watch, events, sizeof events) > 0; k++) continue;
}

void gh_begin_pace(struct gh_pace *pace, bool watched) {
    *pace = (struct gh_pace){.look_ns = GH_FIRST_LOOK_NS,
                             .longest_ns = watched ? GH_LOOK_NS : BLIND_LOOK_NS};
}

void gh_missed(struct gh_pace *pace, bool going) {
    if (going && !pace->going) pace->look_ns = GH_FIRST_LOOK_NS;
    pace->going = going;
}

int64_t gh_rest_ns(struct gh_pace *pace, bool told, int64_t waited_ns) {
    if (!told) {
        const int64_t next = 2 * pace->look_ns;
        pace->look_ns = next < pace->longest_ns ? next : pace->longest_ns;
    } else if (waited_ns < QUIET_NS) {
        const int64_t next = 2 * pace->rest_ns;
        pace->rest_ns = !next ? REST_NS : next < MAX_REST_NS ? next : MAX_REST_NS;
        return pace->rest_ns;
    }
    pace->rest_ns = 0;
    return 0;
}

static void rest(int64_t ns) {
    if (ns <= 0) return;
    const struct timespec nap = {.tv_sec = ns / GH_LOOK_NS, .tv_nsec = ns % GH_LOOK_NS};
    nanosleep(&nap, NULL);
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

void gh_await_name(struct gh_arrivals *arrivals, bool going, int other, int64_t at_most_ns) {
    if (!arrivals->begun) {
        arrivals->begun = true;
        arrivals->watch = gh_watch_names(GH_SHM);
        gh_begin_pace(&arrivals->pace, arrivals->watch >= 0);
        gh_missed(&arrivals->pace, going);
        return;
    }
    gh_missed(&arrivals->pace, going);
    struct pollfd watch[2] = {{.fd = arrivals->watch, .events = POLLIN},
                              {.fd = other, .events = POLLIN}};
    const int64_t begun = gr_now_ns(), longest = smaller(arrivals->pace.look_ns, at_most_ns);
    const bool told = poll(watch, 2, (int)((longest + 999999) / 1000000)) > 0;
    const int64_t waited = gr_now_ns() - begun;
    rest(smaller(gh_rest_ns(&arrivals->pace, told, waited), at_most_ns - waited));
    if (arrivals->watch >= 0) gh_drain_names(arrivals->watch);
}

void gh_end_arrivals(struct gh_arrivals *arrivals) {
    if (arrivals->begun && arrivals->watch >= 0) close(arrivals->watch);
}
