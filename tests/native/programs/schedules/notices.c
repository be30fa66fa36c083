/* The scenes of descriptors. The notifier thread has a turn when a scene says so. */
#include "schedules.h"

#include <poll.h>
#include <pthread.h>

/* The actors are one thread, so an actor that cannot take the mutex lets the other one go on. */
static int lock(pthread_mutex_t *mutex) {
    while (pthread_mutex_trylock(mutex) != 0) give_way();
    return 0;
}
/* Another place for a switch: the other actor may have its turn before the next step, or not. */
static int unlock(pthread_mutex_t *mutex) {
    pthread_mutex_unlock(mutex);
    step();
    return 0;
}
#define pthread_mutex_lock(mutex) lock(mutex)
#define pthread_mutex_unlock(mutex) unlock(mutex)
#include "../../../../gpuring/native/core/notify.c"

static struct gr_notifier *notifier;

static bool is_readable(void) {
    struct pollfd told = {.fd = gr_notifier_fd(notifier), .events = POLLIN};
    return poll(&told, 1, 0) == 1;
}
static void arm(void) { gr_notifier_arm(notifier, &reader, false); }
static void set_open(void) {
    running = true; /* no thread is begun */
    asleep = false;
    REQUIRE(gr_join_producer(theirs, &producer) == GR_OK && (notifier = gr_notifier_open()) != NULL);
    join(mine, &reader, GR_LOSSLESS);
}
static void set_armed(void) {
    set_open();
    arm();
}
static void have_a_turn(void) {
    lock(&mutex);
    look_around();
    unlock(&mutex);
}
static void publish_one(void) { REQUIRE(publish()); }
static void publish_and_have_a_turn(void) {
    publish_one();
    have_a_turn();
}
static void close_it(void) { gr_notifier_close(notifier); }

static void tells_or_is_woken(void) {
    REQUIRE(is_readable() || waited[1].value != gr_load_sc(&mine->head->bell), "it sleeps, and a frame is there");
    close_it();
}
static void tells(void) {
    REQUIRE(is_readable(), "the descriptor tells nothing of the frame");
    close_it();
}

const struct scene notices[] = {
    {"D8", set_armed, have_a_turn, publish_one, tells_or_is_woken, false},
    {"D10", set_open, arm, publish_and_have_a_turn, tells, false},
    {NULL}};
