/* A program that produces or consumes frames, for the tests.
 *
 *   stranger create NAME SLOTS WORDS
 *   stranger remove NAME
 *   stranger subscribe NAME SUBSCRIPTION MODE START PATIENCE_NS       a durable one
 *   stranger unsubscribe NAME SUBSCRIPTION
 *   stranger produce NAME WHO FRAMES                  0 frames: until SIGTERM comes
 *   stranger consume NAME SUBSCRIPTION MODE START     MODE is lossless, lossy or latest; START is
 *                                                     next, oldest or a sequence
 *
 * A frame has 64-bit words. The first one says who wrote it and its number, and the others follow
 * from that, so every word is checked. Each frame is a line of the output. A producer writes it
 * after it has published, and a consumer before it releases. The last line says why it ended. If
 * the input is a pipe, a byte of it is read for each frame that this process has, and a creator
 * reads one before it closes the ring.
 */
#include "ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void end(int number) {
    (void)number;
    ending = 1;
}

/* One write for a line: it is there even if this process is killed right after it. */
static void say(const char *format, unsigned long long a, unsigned long long b,
                unsigned long long c, unsigned long long d) {
    char line[128];
    int nchars = snprintf(line, sizeof line, format, a, b, c, d);
    if (write(STDOUT_FILENO, line, (size_t)nchars) != nchars) exit(4);
}

static bool paused;
static void pause_for_input(void) {
    char byte;
    if (paused && read(STDIN_FILENO, &byte, 1) != 1) paused = false;
}

static uint64_t content(uint64_t first, uint64_t k) {
    return first + k * UINT64_C(0x9e3779b97f4a7c15);
}
static word *metadata(uint64_t i) {
    return head->meta_nbytes ? (word *)(meta + i * up_to(head->meta_nbytes, 64)) : NULL;
}

static enum answer produce(uint64_t who, uint64_t frames) {
    enum answer got = GOT;
    for (uint64_t k = 0; !ending && (frames == 0 || k < frames); k++) {
        if ((got = wait_for(claim)) != GOT) return got;
        uint64_t i = taken % n, first = who << 32 | k;
        uint64_t *frame = (uint64_t *)(payload + i * head->slot_nbytes);
        for (uint64_t j = 0; j < words; j++) frame[j] = content(first, j);
        if (metadata(i)) *metadata(i) = first;
        if (paused) say("claimed %llu\n", taken, 0, 0, 0);
        pause_for_input();
        const bool gives_up = ending;
        if (!end_claim(gives_up ? VOID : READY)) return CLEARED;
        if (!gives_up) say("%llu %llu %llu\n", taken, who, k, 0);
    }
    return got;
}

static enum answer consume(enum answer (*verb)(void)) {
    enum answer got = GOT;
    while (!ending && (got = wait_for(verb)) == GOT) {
        uint64_t i = taken % n;
        const uint64_t *frame = (const uint64_t *)(payload + i * head->slot_nbytes);
        uint64_t first = frame[0];
        for (uint64_t j = 0; j < words; j++)
            if (frame[j] != content(first, j)) fail("a frame is not what was written");
        if (metadata(i) && *metadata(i) != first) fail("metadata is not what was written");
        /* before the release: otherwise a kill in between would hide a frame that is done */
        say("%llu %llu %llu %llu\n", taken, first >> 32, first & 0xffffffff, again);
        pause_for_input();
        if (!end_hold(ending ? OPEN : DONE)) return CLEARED;
    }
    return got;
}

static void wait_for_ring(const char *name) {
    for (int tries = 0; !attach(name); tries++) {
        if (tries == 100000) fail("there is no such ring");
        nap();
    }
}

int main(int argc, char **argv) {
    static const char *const why[] = {"done", "done", "ended", "peer lost", "closed", "cleared"};
    struct sigaction action = {.sa_handler = end};
    struct stat input;
    sigaction(SIGTERM, &action, NULL);
    paused = fstat(STDIN_FILENO, &input) == 0 && S_ISFIFO(input.st_mode);
    if (argc < 3 || (argc < 5 && !strstr("remove unsubscribe", argv[1]))) fail("see the head of main.c");
    const char *what = argv[1], *name = argv[2];
    enum answer got = CLOSED;
    if (strcmp(what, "create") == 0) {
        create(name, (uint32_t)atoi(argv[3]), strtoull(argv[4], NULL, 10));
        say("created\n", 0, 0, 0, 0);
        pause_for_input();
        close_and_remove(name);
    } else if (strcmp(what, "remove") == 0) {
        remove_ring(name);
    } else if (strcmp(what, "subscribe") == 0) {
        wait_for_ring(name);
        clear_the_dead();
        subscribe(argv[3], strcmp(argv[4], "lossless") == 0 ? LOSSLESS : LOSSY, argv[5],
                  strtoull(argv[6], NULL, 10));
        got = GOT;
    } else if (strcmp(what, "unsubscribe") == 0) {
        wait_for_ring(name);
        unsubscribe(argv[3]);
        got = GOT;
    } else {
        const bool produces = strcmp(what, "produce") == 0;
        const char *mode = produces ? "" : argv[4];
        lossy = !produces && strcmp(mode, "lossless") != 0;
        wait_for_ring(name);
        if (join(produces ? PRODUCER : CONSUMER, argv[3], produces ? "" : argv[5])) {
            say("joined as %llu\n", me, 0, 0, 0);
            if (produces) got = produce(strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
            else got = consume(strcmp(mode, "latest") == 0 ? latest : acquire);
            leave();
        }
    }
    say("lost %llu\n", lost, 0, 0, 0);
    puts(why[got]);
    return 0;
}
