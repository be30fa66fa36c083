/* Two actors use the core, and are switched between any two of its steps. The first is stopped
 * before each of its steps in turn. Then the second runs, and is stopped before each of its own
 * steps in turn. Then the first goes on, or, in some scenes, is killed. At the end of each schedule
 * a scene checks what must hold.
 *
 * The model (tests/model) explores the protocol. This is the C code itself, with one schedule after
 * the other in one thread, so a failure comes again. A step follows the one before it, so what weak
 * memory orders allow is not tried.
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

/* Reports, in the parent, that a schedule has failed. */
void complain(const char *format, ...);
#define NOT_SO(...) complain(__VA_ARGS__)
#include "../require.h"

/* ---- what peers do, scenes.c ----------------------------------------------------------------- */

extern struct gr_peer producer, reader;
void join(struct gr_ring *ring, struct gr_peer *me, unsigned mode);
bool publish(void);
