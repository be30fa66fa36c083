/* The report: at which points processes died, how often, and how long the survivors took.
 *
 * It runs in the parent. The JSON has the same figures as the table; bench/results keeps such a
 * file.
 */
#include "kill.h"

#include <stdlib.h>

struct samples { int64_t *ns; size_t count; };

static unsigned killed[MAX_POINTS][ROLES], missed[MAX_POINTS][ROLES];
/* Deaths of newcomers have figures of their own, because a watchdog may find a newcomer only at its
 * next tick. */
static struct samples recovery[MAX_POINTS], known, newcomers;

/* Notes whether the victim died at its point or never came to it. */
void note_end(bool died) { (died ? killed : missed)[now.point][now.role]++; }

bool was_reached(int point) {
    unsigned total = 0;
    for (enum role r = 0; r < ROLES; r++) total += killed[point][r];
    return total > 0;
}

static void keep(struct samples *of, int64_t ns) {
    if ((of->count & (of->count - 1)) == 0) of->ns = realloc(of->ns, (of->count + 1) * 2 * sizeof *of->ns);
    of->ns[of->count++] = ns;
}

void note_recovery(int64_t ns, bool newcomer) {
    keep(&recovery[now.point], ns);
    keep(newcomer ? &newcomers : &known, ns);
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Writes the same figures to the table and to the JSON. */
static void quantiles(struct samples *of, const char *name, FILE *json) {
    static const double at[] = {.5, .99, 1};
    if (of->count) qsort(of->ns, of->count, sizeof *of->ns, by_value);
    double us[3] = {0};
    for (int k = 0; k < 3 && of->count; k++)
        us[k] = (double)of->ns[(size_t)(at[k] * (double)(of->count - 1))] / 1000;
    printf("%-24s %7zu %8.0f %8.0f %8.0f ", name, of->count, us[0], us[1], us[2]);
    fprintf(json, "\"recovery_us\": {\"samples\": %zu, \"p50\": %.0f, \"p99\": %.0f, \"max\": %.0f}", of->count,
            us[0], us[1], us[2]);
}

#define WHERE                                                                                      \
    "printf '\"date\": \"%s\", \"commit\": \"%s\", \"cpu\": \"%s\", \"cores\": %s, \"load\": %s'"            \
    " \"$(date -u +%FT%TZ)\" \"$(git rev-parse HEAD 2>/dev/null)\""                                \
    " \"$(sed -n '/^model name/{s/.*: //p;q}' /proc/cpuinfo)\" $(nproc) $(cut -d' ' -f1 /proc/loadavg)"

/* Returns the number of points at which no process died. */
int report(FILE *json, uint64_t rounds, uint64_t seed, double seconds) {
    char where[512] = "";
    int unreached = 0;
    FILE *pipe = popen(WHERE, "r");
    if (!pipe || !fgets(where, sizeof where, pipe) || pclose(pipe) != 0) strcpy(where, "\"date\": null");
    fprintf(json, "{\"rounds\": %llu, \"seed\": %llu, \"seconds\": %.1f, %s,\n \"points\": {", LL rounds, LL seed,
            seconds, where);
    printf("%-24s %7s %8s %8s %8s  µs; rounds by role\n", "fault point", "samples", "p50", "p99", "max");
    for (int p = 0; p < point_count; p++) {
        const char *comma = "";
        unsigned total = 0;
        fprintf(json, "%s\n  \"%s\": {", p ? "," : "", points[p]);
        quantiles(&recovery[p], points[p], json);
        fprintf(json, ", \"roles\": {");
        for (enum role r = 0; r < ROLES; r++) {
            if (!comes(r, points[p])) continue;
            total += killed[p][r];
            if (killed[p][r]) printf(" %s %u", role_names[r], killed[p][r]);
            else printf(" %s %s", role_names[r], missed[p][r] ? "NOT REACHED" : "not tried");
            fprintf(json, "%s\"%s\": {\"killed\": %u, \"not_reached\": %u}", comma, role_names[r], killed[p][r],
                    missed[p][r]);
            comma = ", ";
        }
        fprintf(json, "}}");
        puts(total ? "" : " NOBODY DIED HERE");
        unreached += total == 0;
    }
    fprintf(json, "},\n \"known\": {");
    quantiles(&known, "all known for a while", json);
    fprintf(json, "},\n \"newcomers\": {");
    quantiles(&newcomers, "\nall newcomers", json);
    fprintf(json, "}}\n");
    printf("\n%llu rounds in %.1f s, seed %llu, %d points not reached\n", LL rounds, seconds, LL seed, unreached);
    return unreached;
}

/* Prints which round has failed, the first complaint, and the words of the ring. */
void report_failure(uint64_t seed) {
    fprintf(stderr, "round %llu of seed %llu: %s dies at \"%s\" (%s, hit %u, %u slots, %u idle peers, joins %s): %s\n",
            LL now.number, LL seed, role_names[now.role], points[now.point],
            now.stop ? "stopped, then killed" : "killed", now.k, now.slots, now.crowd, now.victim_first ? "first" : "last",
            book->complaint);
    if (!ring) return;
    struct gr_head *head = ring->head;
    fprintf(stderr, "hint %llu bell %u waiters %u closed %llu producers %#llx", LL head->claim_hint, head->bell,
            head->waiters, LL head->closed, LL head->producers);
    fprintf(stderr, " reaps %llu", LL head->reaps);
    for (int k = 0; k < GR_MASK_WORDS; k++)
        fprintf(stderr, " sub_mask %#llx peer_mask %#llx", LL head->sub_mask[k], LL head->peer_mask[k]);
    for (uint32_t p = 0; p < ring->max_peers; p++)
        fprintf(stderr, "\npeer %u: %#llx pid %llu waiting %llu", p, LL ring->peer[p].word, LL ring->peer[p].pid,
                LL ring->peer[p].waiting);
    for (uint32_t i = 0; i < ring->slots; i++) {
        uint64_t w = gr_load_sc(&ring->slot[i].word), t;
        fprintf(stderr, "\nslot %u: (%llu, %u, %u) of %llu, %#llx; torn", i, LL seq_of(w), owner_of(w), phase_of(w),
                LL ring->slot[i].producer, LL ring->slot[i].fence);
        for (uint32_t p = 0; p < ring->max_peers; p++)
            fprintf(stderr, " %#llx %#llx", LL tear_of(ring, i, p)->id, LL tear_of(ring, i, p)->reached);
        fprintf(stderr, "; takes");
        for (uint32_t u = 0; u < ring->max_subscriptions; u++) {
            t = gr_load_sc(&take_of(ring, i, u)->word);
            fprintf(stderr, " (%llu, %u, %u)", LL seq_of(t), owner_of(t), phase_of(t));
        }
    }
    fputc('\n', stderr);
}
