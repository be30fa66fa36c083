/* Where the tables of a header are, as its counts say. */
#include "layout.h"

#include <stdio.h>

static uint64_t aligned(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* Takes the next nbytes at *at, and returns where they begin. */
static uint64_t table(uint64_t *at, uint64_t nbytes) {
    uint64_t begin = *at;
    *at += nbytes;
    return begin;
}

/* Whether each value is in its range; else says in `why` which one is not. */
static bool in_range(const struct gr_config *config, char *why, size_t why_nbytes) {
    const bool host = config->memory == GR_MEMORY_HOST, pinned = config->memory == GR_MEMORY_PINNED;
    /* Peers without a GPU look at words, so a pinned ring has a timeline. */
    const enum gr_sync least = host ? GR_SYNC_HOST : pinned ? GR_SYNC_TIMELINE : GR_SYNC_EVENT;
    const struct range {
        const char *field;
        uint64_t value, least, most;
    } ranges[] = {
        {"slots", config->slots, 1, GR_MAX_SLOTS},
        {"max_peers", config->max_peers, 1, GR_MAX_PEERS},
        {"max_subscriptions", config->max_subscriptions, 1, GR_MAX_SUBSCRIPTIONS},
        {"memory", config->memory, 0, GR_MEMORY_PINNED},
        {"sync", config->sync, least, host ? GR_SYNC_HOST : GR_SYNC_TIMELINE},
        {"gate", config->gate, 0, GR_GATE_HOST},
        {"producers", config->producers, 0, GR_MAX_PRODUCERS},
        {"slot_nbytes", config->slot_nbytes, 1, GR_MAX_SLOT_NBYTES},
        {"meta_nbytes", config->meta_nbytes, 0, GR_MAX_META},
        {"spec_nbytes", config->spec_nbytes, 1, GR_MAX_SPEC},
    };
    for (size_t k = 0; k < sizeof ranges / sizeof *ranges; k++) {
        const struct range *range = &ranges[k];
        if (range->least <= range->value && range->value <= range->most) continue;
        snprintf(why, why_nbytes, "%s is %llu, not %llu to %llu", range->field,
                 (unsigned long long)range->value, (unsigned long long)range->least,
                 (unsigned long long)range->most);
        return false;
    }
    return true;
}

bool gr_layout(const struct gr_config *config, struct gr_layout *layout, char *why,
               size_t why_nbytes) {
    if (!in_range(config, why, why_nbytes)) return false;
    const uint64_t n = config->slots, peers = config->max_peers, subs = config->max_subscriptions,
                   words = n * peers * sizeof(gr_word);
    uint64_t at = GR_PAGE;
    layout->meta_stride = aligned(config->meta_nbytes, GR_LINE);
    layout->sub = table(&at, subs * sizeof(struct gr_sub));
    layout->peer = table(&at, peers * sizeof(struct gr_peer_entry));
    layout->slot = table(&at, n * sizeof(struct gr_slot));
    layout->take = table(&at, aligned(n * subs * sizeof(struct gr_take), GR_LINE));
    layout->tear = table(&at, aligned(n * peers * sizeof(struct gr_tear), GR_LINE));
    layout->work = at;
    layout->fence = aligned(layout->work + words, GR_PAGE);
    layout->event = at = aligned(layout->fence + words, GR_PAGE);
    at += config->sync == GR_SYNC_EVENT ? n * peers * GR_EVENT_HANDLE : 0;
    layout->meta = table(&at, n * layout->meta_stride);
    layout->spec = table(&at, config->spec_nbytes);
    layout->nbytes = aligned(at, GR_PAGE);
    layout->traced_nbytes = layout->nbytes + peers * sizeof(struct gr_trace_table);
    return true;
}
