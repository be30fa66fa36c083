/* Plays every schedule of a scene with at most two switches. Usage: program SCENE
 *
 * An actor is a context with a stack of its own. One that is killed never goes on, and its process
 * has lost its locks.
 */
#include "schedules.h"

#include <stdarg.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK = 256 * 1024, DEADLINE_S = 100, TURNS = 1000 };
#define TO_ITS_END UINT64_MAX

struct actor {
    ucontext_t context;
    void (*act)(void);
    uint64_t steps; /* that are left until it stops */
    bool stopped, ended;
    char stack[STACK];
};

struct gr_ring *mine, *theirs;
static struct actor one, other, *now;
static ucontext_t director;
static const struct scene *scene;
static uint64_t first, second; /* the schedule: how many steps each of them takes before it stops */

void complain(const char *format, ...) {
    va_list more;
    va_start(more, format);
    vfprintf(stderr, format, more);
    va_end(more);
    fprintf(stderr, "\n%s: the one stops after %lld steps, the other after %lld\n", scene->name, (long long)first,
            (long long)second);
    exit(1);
}

/* ---- actors ---------------------------------------------------------------------------------- */

void give_way(void) {
    struct actor *self = now;
    REQUIRE(self != NULL);
    now = NULL;
    swapcontext(&self->context, &director);
}
void step(void) {
    if (!now || now->steps == TO_ITS_END || now->steps-- != 0) return;
    now->stopped = true;
    give_way();
}

/* An actor that naps waits for the other one, because there are only two. */
int __wrap_nanosleep(const struct timespec *nap, struct timespec *left);
int __wrap_nanosleep(const struct timespec *nap, struct timespec *left) {
    (void)nap, (void)left;
    give_way();
    return 0;
}

static void live(void) {
    struct actor *self = now;
    self->act();
    now = NULL;
    self->ended = true;
}
static void begin(struct actor *actor, void (*act)(void)) {
    actor->act = act;
    actor->ended = false;
    getcontext(&actor->context);
    actor->context.uc_stack.ss_sp = actor->stack;
    actor->context.uc_stack.ss_size = STACK;
    actor->context.uc_link = &director;
    makecontext(&actor->context, live, 0);
}
/* Runs the actor until it stops before a step, has to wait, or has ended. */
static void run(struct actor *actor, uint64_t steps) {
    actor->steps = steps;
    actor->stopped = false;
    if (actor->ended) return;
    now = actor;
    swapcontext(&director, &actor->context);
}

/* ---- schedules ------------------------------------------------------------------------------- */

static void open_ring(void) {
    const struct gr_config config = {.slots = SLOTS, .max_peers = 4, .max_subscriptions = 2,
                                     .memory = GR_MEMORY_HOST, .sync = GR_SYNC_HOST, .slot_nbytes = 64, .spec_nbytes = 2};
    const uint8_t zeros[64] = {0};
    const char *why;
    char text[256];
    int fd = memfd_create("schedules", MFD_CLOEXEC);
    REQUIRE((mine = gr_create(fd, &config, zeros, zeros, zeros, "{}")) != NULL);
    REQUIRE((theirs = gr_attach(fd, &why, text, sizeof text)) != NULL);
    close(fd);
}

/* Plays one schedule. The results say whether each actor came to its stop. */
static void play(bool *one_stopped, bool *other_stopped) {
    open_ring();
    scene->set();
    begin(&one, scene->one);
    begin(&other, scene->other);
    run(&one, first);
    *one_stopped = one.stopped;
    if (scene->dies) gr_disown(theirs), one.ended = true;
    run(&other, second);
    *other_stopped = other.stopped;
    for (int turn = 0; !one.ended || !other.ended; turn++) {
        REQUIRE(turn < TURNS, "they wait for ever");
        run(&one, TO_ITS_END);
        run(&other, TO_ITS_END);
    }
    scene->check();
    gr_detach(mine);
    gr_detach(theirs);
}

static const struct scene *find(const struct scene *in, const char *name) {
    while (in->name && strcmp(in->name, name) != 0) in++;
    return in->name ? in : NULL;
}

int main(int count, char **words) {
    unsigned long schedules = 0;
    if (count == 2 && !(scene = find(scenes, words[1]))) scene = find(notices, words[1]);
    if (!scene) return 2;
    alarm(DEADLINE_S);
    bool one_stopped = true, other_stopped;
    for (first = 0; one_stopped; first++)
        for (second = scene->dies ? TO_ITS_END : 0, other_stopped = true; other_stopped; second++, schedules++)
            play(&one_stopped, &other_stopped);
    printf("%lu schedules\n", schedules);
    return 0;
}
