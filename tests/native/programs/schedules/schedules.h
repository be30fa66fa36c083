/* Two actors use the core, and stop between any two of its steps: the one is stopped before each of
 * its steps, the other goes on from there, stops before each of its own, and the one goes on. In
 * some scenes the one is killed instead. What must hold is checked at the end of each schedule.
 *
 * The model (tests/model) explores the protocol. This is the C code itself, with one schedule
 * after the other in one thread, so a failure comes again. A step follows the one before it, so
 * what weak memory orders allow is not tried.
 *
 * director.c plays the schedules of a scene, and says which one was wrong. scenes.c and notices.c
 * have the scenes. steps.h makes an access to an atomic word a step.
 */
#pragma once

#define _GNU_SOURCE
#include <string.h>

#include "../core.h"

/* A scene is set for each schedule. */
struct scene {
    const char *name;
    void (*set)(void), (*one)(void), (*other)(void), (*check)(void);
    bool dies; /* `one` uses the ring `theirs` only, and is killed */
};
extern const struct scene scenes[], notices[]; /* up to one without a name */

/* The ring of this process, and the same one as another process has it. */
enum { SLOTS = 2 };
extern struct gr_ring *mine, *theirs;

/* The actor cannot go on before the other one has. */
void give_way(void);
void step(void);

/* In the parent: the schedule was wrong. */
void complain(const char *format, ...);
#define NOT_SO(...) complain(__VA_ARGS__)
#include "../require.h"

/* ---- what peers do, scenes.c ----------------------------------------------------------------- */

extern struct gr_peer producer, reader;
void join(struct gr_ring *ring, struct gr_peer *me, unsigned mode);
bool publish(void);
