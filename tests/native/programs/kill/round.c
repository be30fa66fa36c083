/* A round: its processes are started, one dies, and the others are watched until they have gone on
 * and ended.
 *
 * It runs in the parent. Every wait is an UNTIL, which has a deadline. A child is forgotten only
 * when it has been waited for, so end_children() leaves none behind.
 */
#include "kill.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { CHILDREN = 16 };
enum { GIVE_UP_NS = 200 * 1000 * 1000 }; /* times its patience: the point is not reached in this round */

static pid_t children[CHILDREN];

enum part { A_SURVIVOR, A_VICTIM, A_CORPSE, AN_AUDITOR };

static pid_t spawn(enum part what, int which, enum role role, const char *target, unsigned k) {
    pid_t parent = getpid(), pid = fork();
    if (pid != 0) {
        for (int c = 0; c < CHILDREN; c++)
            if (children[c] == 0) return children[c] = pid;
        abort();
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(4);
    memset(&self, 0, sizeof self);
    chance_state = mix(now.seed + 16 * (uint64_t)what + (uint64_t)which);
    self.victim = what == A_VICTIM;
    self.k = k;
    self.stop = now.stop && self.victim;
    if (what == A_SURVIVOR) survivor(which);
    else if (what == AN_AUDITOR) audit();
    else mortal(role, target);
    _exit(0);
}

/* Returns 0 if the child is still there. A stop counts once. */
static int changed(pid_t pid, int *status) {
    pid_t got = waitpid(pid, status, WNOHANG | WUNTRACED);
    if (got == pid && !WIFSTOPPED(*status))
        for (int c = 0; c < CHILDREN; c++)
            if (children[c] == pid) children[c] = 0;
    return got == pid;
}

/* The condition comes true within the deadline, or the round has failed. */
#define UNTIL(condition, ...)                                                                      \
    for (int64_t end_ = gr_now_ns() + (int64_t)deadline_ms * 1000000; !(condition); nap(30)) {              \
        if (gr_now_ns() > end_) complain("deadline: " #condition " " __VA_ARGS__);                 \
        if (atomic_load(&book->failed)) return false;                                              \
    }

static bool in_table(pid_t pid) {
    for (uint32_t p = 0; p < ring->max_peers; p++)
        if (state_of(gr_load_sc(&ring->peer[p].word)) != GR_FREE && gr_load_relaxed(&ring->peer[p].pid) == (uint64_t)pid)
            return true;
    return false;
}

/* Makes a dead peer for the reaper to clear, with leftovers that lead it to the point of its
 * death. */
static pid_t spawn_corpse(const char *point) {
    static const struct { enum role role; const char *target; } ways[] = {
        {PRODUCER, "promised"}, {PRODUCER, "device: unfinished"}, {CONSUMER, "acquire: confirmed"},
        {MEMBER, "acquire: confirmed"}, {PRODUCER, "claim: claimed"}, {LOSSY, "acquire: held"},
        {SLEEPER, "sleep: marked"}};
    bool owes = strstr(point, "torn") || strstr(point, "fence") || strstr(point, "producers");
    uint64_t n = owes ? chance(2) : chance(7);
    if (strstr(point, "subscription")) n = 2;
    if (strstr(point, "redo")) n = 2 + chance(2);
    return spawn(A_CORPSE, 0, ways[n].role, ways[n].target, 1 + (unsigned)chance(4));
}

/* Lossy readers that never read: they hold nothing, and nobody waits for them. */
static struct gr_peer crowd[CROWD];

static bool gather(void) {
    for (unsigned k = 0; k < now.crowd; k++) {
        char name[GR_NAME_WORDS * 8] = {0};
        snprintf(name, sizeof name, "idle %u", k);
        EXPECT(gr_join_consumer(ring, name, GR_LOSSY, GR_REDELIVER, GR_START_NEXT, 0, &crowd[k]) == GR_OK);
    }
    return true;
}
static bool disperse(void) {
    for (unsigned k = 0; k < now.crowd; k++) EXPECT(gr_leave(&crowd[k]) == GR_OK);
    return true;
}

static void note_frames(uint64_t frames[SURVIVORS]) {
    for (int s = 0; s < SURVIVORS; s++) frames[s] = atomic_load(&book->survivor[s].frames);
}

/* All frames that were there have been read, and are known to be whole or torn. */
static bool two_laps_on(const uint64_t since[SURVIVORS]) {
    for (int s = 0; s < SURVIVORS; s++)
        if (atomic_load(&book->survivor[s].frames) < since[s] + 2 * now.slots + 2) return false;
    return true;
}

bool play(void) {
    const char *point = points[now.point];
    pid_t survivors[SURVIVORS], victim = 0, corpse = 0, dead[8] = {0};
    int status, there = 0;
    uint64_t at_death[SURVIVORS];
    if (now.role != CREATOR) {
        create();
        if (!gather()) return false;
    }
    if (now.victim_first) {
        victim = spawn(A_VICTIM, 0, now.role, point, now.k);
        there++;
        UNTIL(atomic_load(&book->joined) == there);
        if (now.role == CREATOR) {
            attach();
            if (!gather()) return false;
        }
    }
    for (int s = 0; s < SURVIVORS; s++) survivors[s] = spawn(A_SURVIVOR, s, ROLES, NULL, 0);
    there += SURVIVORS;
    UNTIL(atomic_load(&book->joined) == there);
    if (!victim) {
        victim = spawn(A_VICTIM, 0, now.role, point, now.k);
        UNTIL(atomic_load(&book->joined) == there + 1);
    }
    atomic_store(&book->go, 1);
    uint64_t first = now.slots + chance(8);
    UNTIL(atomic_load(&book->survivor[S_PRODUCER].frames) >= first);
    atomic_store(&book->armed_ns, gr_now_ns());

    int64_t give_up = gr_now_ns() + now.patience * (int64_t)GIVE_UP_NS;
    /* The next corpse may have the number of the last one. If it dies while a survivor does not
     * know how a frame of the last one ended, the frame is called torn (docs/failure.md). */
    enum { NOTHING, LAST_IS_IN_TABLE, LAST_IS_CLEARED } wait = NOTHING;
    uint64_t at_clearing[SURVIVORS];
    while (!changed(victim, &status)) {
        if (now.role == REAPER && corpse && changed(corpse, &status)) {
            EXPECT(status == SIGKILL || (status == 0 && atomic_load(&book->quit)), "corpse: %#x", status);
            corpse = 0;
            wait = LAST_IS_IN_TABLE;
        } else if (wait == LAST_IS_IN_TABLE && !in_table(dead[now.deaths - 1])) {
            note_frames(at_clearing);
            wait = LAST_IS_CLEARED;
        } else if (wait == LAST_IS_CLEARED && two_laps_on(at_clearing)) wait = NOTHING;
        else if (now.role == REAPER && !corpse && now.deaths < 6 && wait == NOTHING)
            dead[now.deaths++] = corpse = spawn_corpse(point);
        if (gr_now_ns() > give_up) atomic_store(&book->quit, 1);
        if (gr_now_ns() > give_up + (int64_t)deadline_ms * 1000000) complain("the victim does not end");
        if (atomic_load(&book->failed)) return false;
        nap(20);
    }
    if (WIFSTOPPED(status)) { /* a stop is no death: nobody may touch what it has */
        uint64_t reaps = gr_load_sc(&ring->head->reaps);
        nap((long)chance(2000));
        EXPECT(now.role == REAPER || gr_load_sc(&ring->head->reaps) == reaps, "a stopped process was reaped");
        atomic_store(&book->died_ns, gr_now_ns());
        kill(victim, SIGKILL);
        UNTIL(changed(victim, &status));
    }
    if (WIFSIGNALED(status)) {
        EXPECT(WTERMSIG(status) == SIGKILL, "victim: %#x", status);
        dead[now.deaths++] = victim;
    } else EXPECT(status == 0, "victim: %#x", status);
    note_end(WIFSIGNALED(status));
    note_frames(at_death);
    if (corpse) UNTIL(changed(corpse, &status));
    for (unsigned d = 0; d < now.deaths && !gr_load_sc(&ring->head->closed); d++) UNTIL(!in_table(dead[d]));
    for (int s = 0; s < SURVIVORS && !gr_load_sc(&ring->head->closed); s++)
        UNTIL(atomic_load(&book->survivor[s].frames) >= at_death[s] + 2 * now.slots + 2, "(survivor %d)", s);
    atomic_store(&book->stop, 1);
    for (int s = 0; s < SURVIVORS; s++) {
        UNTIL(changed(survivors[s], &status), "(survivor %d)", s);
        EXPECT(status == 0, "survivor %d: %#x", s, status);
        struct survivor *who = &book->survivor[s];
        if (!who->recovered_ns || !atomic_load(&book->died_ns)) continue;
        bool new = !now.victim_first || now.role == JOINER || now.role == LEAVER;
        note_recovery(who->recovered_ns, new);
    }
    uint64_t frontier = gr_frontier(ring);
    if (!disperse()) return false;
    pid_t auditor = spawn(AN_AUDITOR, 0, ROLES, NULL, 0);
    UNTIL(changed(auditor, &status));
    EXPECT(status == 0, "auditor: %#x", status);
    return balances(frontier);
}

void end_children(void) {
    for (int c = 0; c < CHILDREN; c++)
        if (children[c] > 0) kill(children[c], SIGKILL), waitpid(children[c], NULL, 0), children[c] = 0;
}
