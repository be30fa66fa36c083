/* Foreseen answers, tested with a clock of our own. The clock moves on with each look at it. In a
 * futex wait it moves to the next frame or to the time-out, whichever comes first, and a little
 * farther, because sleepers wake late. Linked with --wrap=gr_now_ns and --wrap=syscall. Usage:
 * rhythm period_ns jitter_ns waits; prints JSON.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include "core.h"
#include "require.h"

enum { LOOK_NS = 40, WOKEN_NS = 20 * 1000, TIMER_NS = 60 * 1000, TIMER_VARIES_NS = 4000 };

static struct gr_ring *ring;
static struct gr_peer writer, reader;
static int64_t clock_ns = 1000000000, next_ns, schedule_ns, period_ns, jitter_ns, awake_ns;
static uint64_t dice = 1, sleeps;
static bool writing;

#ifdef GR_FAULTS
void gr_fault(const char *name) { (void)name; } /* the objects of other programs call it */
#endif

static int64_t below(int64_t n) {
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return n ? (int64_t)(dice >> 33) % n : 0;
}

/* Moves the clock on, and publishes the frames that are due by then. */
static void advance(int64_t to) {
    while (next_ns && next_ns <= to) {
        uint64_t value;
        clock_ns = next_ns;
        next_ns = (schedule_ns += period_ns) + below(2 * jitter_ns) - jitter_ns;
        writing = true;
        REQUIRE(gr_claim(&writer) == GR_OK);
        pay(&writer, &value);
        REQUIRE(gr_publish(&writer, writer.last.index, writer.last.seq, value, 0, NULL) == GR_OK);
        writing = false;
    }
    if (to > clock_ns) clock_ns = to;
}

int64_t __wrap_gr_now_ns(void);
int64_t __wrap_gr_now_ns(void) {
    if (writing) return clock_ns;
    awake_ns += LOOK_NS;
    advance(clock_ns + LOOK_NS);
    return clock_ns;
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
    va_list more;
    va_start(more, number);
    gr_word32 *word = va_arg(more, gr_word32 *);
    int operation = va_arg(more, int);
    uint32_t value = va_arg(more, uint32_t);
    const struct timespec *rest = va_arg(more, const struct timespec *);
    va_end(more);
    REQUIRE(number == SYS_futex);
    if (operation == FUTEX_WAKE) return 1;
    REQUIRE(operation == FUTEX_WAIT && rest);
    REQUIRE(atomic_load(&ring->head->waiters) == 1); /* else nobody would ring */
    if (atomic_load(word) != value) return errno = EAGAIN, -1;
    int64_t until = clock_ns + rest->tv_sec * 1000000000 + rest->tv_nsec;
    sleeps++;
    if (next_ns && next_ns <= until) {
        advance(next_ns);
        REQUIRE(atomic_load(word) != value);
        advance(clock_ns + WOKEN_NS);
        return 0;
    }
    advance(until + TIMER_NS + below(TIMER_VARIES_NS));
    return errno = ETIMEDOUT, -1;
}

int main(int argc, char **argv) {
    REQUIRE(argc == 4);
    period_ns = atoll(argv[1]), jitter_ns = atoll(argv[2]);
    int waits = atoi(argv[3]), punctual = 0;
    struct gr_config config = {.slots = 8, .max_peers = 4, .max_subscriptions = 2, .slot_nbytes = 64, .spec_nbytes = 2};
    static const uint8_t zeros[64];
    char name[GR_NAME_WORDS * 8] = "reader";
    ring = gr_create(memfd_create("rhythm", MFD_CLOEXEC), &config, zeros, zeros, zeros, "{}");
    REQUIRE(ring && gr_join_consumer(ring, name, GR_LOSSLESS, GR_REDELIVER, GR_START_NEXT, 0, &reader) == GR_OK);
    REQUIRE(gr_join_producer(ring, &writer) == GR_OK);
    next_ns = schedule_ns = clock_ns + period_ns;
    int64_t begun_ns = clock_ns, overdrawn_ns = 0;
    uint64_t before = 0;
    awake_ns = 0;
    for (int n = 0; n < waits; n++) {
        if (n == waits / 2) before = sleeps;
        /* The last one does not come when it is foreseen. */
        if (n == waits - 1) next_ns = schedule_ns += 20 * period_ns;
        reader.wait.deadline_ns = INT64_MAX;
        enum gr_result result = gr_acquire(&reader);
        if (result == GR_BLOCKED) result = gr_spin(&reader, gr_acquire);
        while (result == GR_BLOCKED || result == GR_SIGNAL) result = gr_sleep(&reader, gr_acquire);
        REQUIRE(result == GR_OK && atomic_load(&ring->head->waiters) == 0);
        if (n >= waits / 2) punctual += clock_ns - (int64_t)gr_load_relaxed(&ring->slot[reader.last.index].time_ns) < 1000;
        int64_t over_ns = awake_ns - (clock_ns - begun_ns) / GR_SPIN_SHARE;
        if (over_ns > overdrawn_ns) overdrawn_ns = over_ns;
        uint64_t value;
        pay(&reader, &value);
        REQUIRE(gr_release(&reader, reader.last.index, reader.last.seq) == GR_OK);
    }
    printf("{\"waits\": %d, \"punctual\": %d, \"sleeps\": %llu, \"awake\": %.6f, \"overdrawn_ns\": %lld}\n", waits - waits / 2,
           punctual, (unsigned long long)(sleeps - before), (double)awake_ns / (double)(clock_ns - begun_ns), (long long)overdrawn_ns);
    return 0;
}
