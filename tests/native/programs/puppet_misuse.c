/* The puppet's commands that misuse gpuring.h, that fork, and that do what a program does that was
 * built with an older header. */
#define _POSIX_C_SOURCE 200809L
#include "puppet.h"

#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

/* NAME: what each call answers to a structure whose size is too small. Numbers the wrong ones. */
static void do_small(void) {
    const char *name = word();
    gpuring_attach_options attach = GPURING_ATTACH_OPTIONS;
    gpuring_create_options create = GPURING_CREATE_OPTIONS;
    gpuring_producer_options produce = GPURING_PRODUCER_OPTIONS;
    gpuring_consumer_options consume = GPURING_CONSUMER_OPTIONS;
    gpuring_waited waited = GPURING_WAITED;
    gpuring_slot slot = GPURING_SLOT;
    gpuring_producer *producer;
    gpuring_consumer *consumer;
    gpuring_ring *made;
    uint32_t got;
    attach.size = create.size = produce.size = consume.size = waited.size = 8;
    waited.producer = ends[0].producer;
    slot.size = 0;
    const gpuring_status found[] = {
        gpuring_attach(name, &attach, &made, NULL),
        gpuring_create("small", &create, &made, NULL),
        gpuring_join_producer(ring, &produce, &producer, NULL),
        gpuring_join_consumer(ring, &consume, &consumer, NULL),
        gpuring_claim(ends[0].producer, 0, &slot, NULL),
        gpuring_try_claim(ends[0].producer, &slot, NULL),
        gpuring_claim_many(ends[0].producer, 0, &slot, 1, &got, NULL),
        gpuring_publish(ends[0].producer, &slot, NULL),
        gpuring_publish_many(ends[0].producer, &slot, 1, NULL),
        gpuring_select(&waited, 1, 0, NULL)};
    printf("wrong:");
    for (uint32_t k = 0; k < sizeof found / sizeof *found; k++)
        if (found[k] != GPURING_INVALID) printf(" %u=%s", k, gpuring_status_name(found[k]));
}

/* ENDPOINT: ends its first slot twice in one call. */
static void do_twice(void) {
    struct endpoint *end = endpoint();
    gpuring_slot slots[2];
    slots[0] = slots[1] = end->slots[0];
    answer(end->producer ? gpuring_publish_many(end->producer, slots, 2, &error)
                         : gpuring_release_many(end->consumer, slots, 2, &error));
}

/* What a forked child gets from every call on a handle of its parent, and from its own. */
static void do_fork(void) {
    fflush(stdout);
    const char *name = word();
    const pid_t pid = fork();
    if (pid != 0) {
        int status;
        waitpid(pid, &status, 0);
        printf("exit=%d", status);
        return;
    }
    alarm(20);
    gpuring_slot slot = GPURING_SLOT;
    gpuring_producer *producer;
    gpuring_consumer *consumer;
    gpuring_info info = GPURING_INFO;
    gpuring_field field = GPURING_FIELD;
    gpuring_waited waited = GPURING_WAITED;
    int fd, wrong = 0;
    waited.producer = ends[0].producer;
    wrong += gpuring_get_info(ring, &info) != GPURING_FORKED;
    wrong += gpuring_field_at(ring, 0, &field) != GPURING_FORKED;
    wrong += gpuring_meta_at(ring, 0, &field) != GPURING_FORKED;
    wrong += gpuring_join_producer(ring, NULL, &producer, NULL) != GPURING_FORKED;
    wrong += gpuring_join_consumer(ring, NULL, &consumer, NULL) != GPURING_FORKED;
    wrong += gpuring_claim(ends[0].producer, 0, &slot, NULL) != GPURING_FORKED;
    wrong += gpuring_select(&waited, 1, 0, NULL) != GPURING_FORKED;
    wrong += gpuring_producer_fd(ends[0].producer, &fd, NULL) != GPURING_FORKED;
    wrong += gpuring_publish(ends[0].producer, &ends[0].slots[0], NULL) != GPURING_FORKED;
    wrong += gpuring_close_producer(ends[0].producer, NULL) != GPURING_OK;
    wrong += gpuring_detach(ring, NULL) != GPURING_OK;
    wrong += gpuring_attach(name, NULL, &ring, NULL) != GPURING_OK;
    wrong += gpuring_join_producer(ring, NULL, &producer, NULL) != GPURING_OK;
    wrong += gpuring_close_producer(producer, NULL) != GPURING_OK;
    wrong += gpuring_detach(ring, NULL) != GPURING_OK;
    _exit(wrong);
}

/* [ENDPOINT]: forks a child, which closes that consumer, and lives as long as this process. */
static void do_child(void) {
    int lives[2], closed[2];
    char byte = 0;
    const char *number = word();
    fflush(stdout);
    if (pipe(lives) != 0 || pipe(closed) != 0) return;
    if (fork() == 0) {
        alarm(60);
        close(lives[1]);
        if (*number && gpuring_close_consumer(ends[atoi(number) % MOST].consumer, NULL) != GPURING_OK)
            _exit(1);
        if (write(closed[1], &byte, 1) != 1) _exit(1);
        _exit((int)read(lives[0], &byte, 1)); /* 0: the parent has ended */
    }
    close(closed[1]);
    close(lives[0]);
    printf("%s", read(closed[0], &byte, 1) == 1 ? "ok" : "the child has failed");
    close(closed[0]);
}

/* A program that knows less than the library: what lies behind its slot stays as it is. */
static void do_old(void) {
    struct {
        gpuring_slot slot;
        unsigned char behind[64];
    } old;
    memset(&old, 0xaa, sizeof old);
    old.slot.size = offsetof(gpuring_slot, data);
    const gpuring_status status = gpuring_acquire(ends[0].consumer, 0, &old.slot, &error);
    unsigned char *at = (unsigned char *)&old + old.slot.size;
    answer(status);
    while (at < (unsigned char *)(&old + 1) && *at == 0xaa) at++;
    printf(" %d", at == (unsigned char *)(&old + 1));
    old.slot.data = NULL;
    answer(gpuring_release(ends[0].consumer, &old.slot, &error));
}

bool obey_misuse(const char *verb) {
    if (strcmp(verb, "twice") == 0) do_twice();
    else if (strcmp(verb, "small") == 0) do_small();
    else if (strcmp(verb, "fork") == 0) do_fork();
    else if (strcmp(verb, "child") == 0) do_child();
    else if (strcmp(verb, "old") == 0) do_old();
    else return false;
    return true;
}
