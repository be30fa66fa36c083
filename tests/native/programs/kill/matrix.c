/* The matrix: every fault point of the core, with every role that comes to it, killed or stopped;
 * and main.
 *
 * A new GR_FAULT("…") is found by itself; which roles come to it is listed in comes_to.
 *
 * Usage, from the root of the repository: kill [--rounds N; 0: each point once] [--seed S] [--json FILE] [--first
 * ROUND] [--role NAME] [--point PREFIX] [--core DIRECTORY] [--deadline-ms MS]. A round depends only
 * on the seed, its number and the filters, and on the scheduler, whose part cannot be repeated.
 */
#include "kill.h"

#include <glob.h>
#include <stdlib.h>
#include <sys/mman.h>

const char *const role_names[ROLES] = {"producer", "consumer", "member", "lossy", "joiner", "leaver",
                                              "closer", "creator", "reaper", "sleeper"};

/* The points (or prefixes of points) that a role comes to. A point that is never hit is
 * reported. */
static const char *const comes_to[ROLES][12] = {
    [PRODUCER] = {"claim:", "promised", "publish:", "bell:", "sleep:", "device:", "origin:", "link:",
                  "trace:"},
    [CONSUMER] = {"acquire: looked", "acquire: held", "acquire: confirmed", "promised", "release:", "bell:",
                  "sleep:", "device:", "trace:"},
    [MEMBER] = {"acquire: looked", "acquire: held", "acquire: confirmed", "promised", "release:", "bell:",
                "sleep:", "device:", "give back:"},
    [LOSSY] = {"acquire:", "latest:", "promised", "release:", "bell:", "sleep:", "device:"},
    [JOINER] = {"join:", "trace:", "producers counted", "subscription taken up", "owed:", "settle:"},
    [LEAVER] = {"leave:", "trace:", "producers", "subscription left", "subscription removed", "bell:"},
    [CLOSER] = {"close:", "bell:"},
    [CREATOR] = {"claim:", "promised", "publish:", "bell:", "device:", "origin:", "link:"},
    [REAPER] = {"reap:", "producers", "subscription removed", "subscription left",
                "subscription: resume noted", "subscription given up", "bell:"},
    [SLEEPER] = {"sleep:", "claim: looked", "claim: claimed", "acquire: looked", "acquire: confirmed"},
};

/* It depends on the machine how often a process does not come to its point in a round. A point that
 * was missed in all planned rounds gets as many rounds again, and more patience. */
enum { MOST_LAPS = 5 };

struct round now;
uint64_t deadline_ms = 20000; /* whatever else the machine does: a busy one starves a process for seconds */
char points[MAX_POINTS][32];
int point_count;

static void add_point(const char *name, size_t n) {
    for (int p = 0; p < point_count; p++)
        if (strlen(points[p]) == n && memcmp(points[p], name, n) == 0) return;
    if (n < sizeof *points && point_count < MAX_POINTS) memcpy(points[point_count++], name, n);
}

/* Finds every GR_FAULT("name") in the sources. A new one that no role reaches fails the run. */
static void scan(const char *core) {
    char pattern[512], line[1024];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*.c", core);
    if (glob(pattern, 0, NULL, &found) != 0) fprintf(stderr, "no sources in %s\n", core), exit(2);
    for (size_t k = 0; k < found.gl_pathc; k++) {
        FILE *file = fopen(found.gl_pathv[k], "r");
        while (file && fgets(line, sizeof line, file)) {
            char *at = strstr(line, "GR_FAULT(\"");
            if (at) add_point(at + 10, strcspn(at + 10, "\""));
        }
        if (file) fclose(file);
    }
    globfree(&found);
    add_point("device: unfinished", 18);
}

bool comes(enum role role, const char *point) {
    for (int k = 0; k < 12 && comes_to[role][k]; k++)
        if (strncmp(point, comes_to[role][k], strlen(comes_to[role][k])) == 0) return true;
    return false;
}

/* A cell of the matrix, and all cells that the filters leave. */
struct cell { enum role role; int point; bool stop; };
static struct cell plan[2 * ROLES * MAX_POINTS];
static uint64_t planned;

static void make_plan(const char *role, const char *point) {
    for (enum role r = 0; r < ROLES; r++)
        for (int p = 0; p < point_count; p++)
            for (int stop = 0; stop < 2; stop++)
                if (comes(r, points[p]) && strstr(role_names[r], role) && strstr(points[p], point))
                    plan[planned++] = (struct cell){r, p, stop};
    if (!planned) fprintf(stderr, "nothing to do\n"), exit(2);
    /* Shuffled, so that a short run is a fair sample. */
    for (uint64_t k = planned - 1; k > 0; k--) {
        uint64_t other = chance(k + 1);
        struct cell swapped = plan[k];
        plan[k] = plan[other];
        plan[other] = swapped;
    }
}

/* Puts one cell of each point first, then a second one of each, and so on. */
static void each_point_first(void) {
    static struct cell sorted[sizeof plan / sizeof *plan];
    uint64_t n = 0;
    for (int turn = 0; n < planned; turn++)
        for (int p = 0; p < point_count; p++) {
            int seen = 0;
            for (uint64_t k = 0; k < planned; k++)
                if (plan[k].point == p && seen++ == turn) sorted[n++] = plan[k];
        }
    memcpy(plan, sorted, sizeof plan);
}

static struct round draw(uint64_t n, uint64_t seed) {
    struct cell cell = plan[n % planned];
    /* A round depends on these two alone, so it can be played by itself. */
    chance_state = mix(seed ^ mix(n));
    struct round drawn = {.number = n, .seed = chance_state, .role = cell.role, .point = cell.point, .stop = cell.stop};
    drawn.slots = 2 + (unsigned)chance(MAX_SLOTS - 1);
    drawn.victim_first = cell.role == CREATOR || chance(4) != 0;
    /* A reaper passes most points once, and a closer passes all of them once. */
    const char *name = points[cell.point];
    bool lap = strstr(name, "reap: slot") || strstr(name, "reap: take");
    bool many = cell.role == REAPER ? lap : cell.role != CLOSER;
    drawn.k = 1 + (unsigned)chance(many ? 2 * drawn.slots : 1);
    drawn.crowd = chance(4) == 0 ? CROWD : 0;
    return drawn;
}

int main(int argc, char **argv) {
    uint64_t rounds = 300, seed = 1, first = 0;
    const char *core = "gpuring/native/core", *json = "/dev/null", *role = "", *point = "";
    struct { const char *name, **text; uint64_t *number; } options[] = {
        {"--rounds", NULL, &rounds}, {"--seed", NULL, &seed},  {"--first", NULL, &first},
        {"--json", &json, NULL},     {"--core", &core, NULL},  {"--deadline-ms", NULL, &deadline_ms},
        {"--role", &role, NULL},     {"--point", &point, NULL}};
    for (int k = 1; k < argc; k += 2) {
        size_t o = 0;
        while (o < 8 && strcmp(argv[k], options[o].name) != 0) o++;
        if (o == 8 || k + 1 == argc) return fprintf(stderr, "see tests/native/programs/kill/matrix.c: %s\n", argv[k]), 2;
        if (options[o].text) *options[o].text = argv[k + 1];
        else *options[o].number = strtoull(argv[k + 1], NULL, 0);
    }
    scan(core);
    chance_state = mix(seed);
    make_plan(role, point);
    if (!open_book()) return perror("mmap"), 2;
    atexit(end_children);
    int64_t began = gr_now_ns();
    const bool each = rounds == 0, whole = !*role && !*point && (each || rounds >= planned);
    uint64_t most = (whole ? MOST_LAPS : 1) * (each ? planned : rounds), played = 0;
    if (each) each_point_first(), rounds = (uint64_t)point_count;
    for (uint64_t n = first; n < first + most; n++) {
        now = draw(n, seed);
        now.patience = 1 + (unsigned)((n - first) / rounds);
        if (now.patience > 1 && was_reached(now.point)) continue;
        played++;
        fd = memfd_create("kill", MFD_CLOEXEC);
        ring = NULL;
        if (!play()) return report_failure(seed), 1;
        clear_book(gr_frontier(ring));
        gr_detach(ring);
        close(fd);
    }
    FILE *file = fopen(json, "w");
    if (!file) return perror(json), 2;
    int unreached = report(file, played, seed, (double)(gr_now_ns() - began) / 1e9);
    fclose(file);
    return unreached && whole ? 1 : 0;
}
