/* Where the tables of a header are, as its counts say, and where each field is. */
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
    const bool host = config->memory == GR_MEMORY_HOST;
    const struct range {
        const char *field;
        uint64_t value, least, most;
    } ranges[] = {
        {"slots", config->slots, 1, GR_MAX_SLOTS},
        {"max_peers", config->max_peers, 1, GR_MAX_PEERS},
        {"max_subscriptions", config->max_subscriptions, 1, GR_MAX_SUBSCRIPTIONS},
        {"memory", config->memory, 0, GR_MEMORY_POOL},
        {"sync", config->sync, host ? GR_SYNC_HOST : GR_SYNC_EVENT,
         host ? GR_SYNC_HOST : GR_SYNC_TIMELINE},
        {"gate", config->gate, 0, GR_GATE_HOST},
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
    return true;
}

#define FIELD(table, type, name) {table, #name, offsetof(type, name), sizeof(((type *)0)->name)}
#define HEAD(name) FIELD("head", struct gr_head, name)
#define LINK(name) FIELD("link", struct gr_link, name)
#define DEATH(name) FIELD("death", struct gr_death, name)
#define SUB(name) FIELD("sub", struct gr_sub, name)
#define PEER(name) FIELD("peer", struct gr_peer_entry, name)
#define SLOT(name) FIELD("slot", struct gr_slot, name)
#define TAKE(name) FIELD("take", struct gr_take, name)
#define TEAR(name) FIELD("tear", struct gr_tear, name)
const struct gr_field gr_fields[] = {
    HEAD(magic), HEAD(version), HEAD(memory), HEAD(sync), HEAD(gate), HEAD(nbytes), HEAD(epoch),
    HEAD(slots), HEAD(max_peers), HEAD(max_subscriptions), HEAD(spec_nbytes), HEAD(slot_nbytes),
    HEAD(meta_nbytes), HEAD(created_ns), HEAD(creator_pid), HEAD(creator_start),
    HEAD(creator_pidns), HEAD(device_uuid), HEAD(memory_handle), HEAD(claim_hint), HEAD(bell),
    HEAD(waiters), HEAD(closed), HEAD(producers), HEAD(sub_mask), HEAD(peer_mask), HEAD(joins),
    HEAD(reaps), HEAD(deaths), HEAD(link_turn), HEAD(links),
    LINK(epoch), LINK(seq), LINK(lost), LINK(first), LINK(passed), LINK(passed_lost),
    DEATH(time_ns), DEATH(pid), DEATH(peer), DEATH(number), DEATH(voided), DEATH(torn),
    DEATH(reopened), DEATH(raised),
    SUB(word), SUB(redo), SUB(lost), SUB(created_ns), SUB(name), SUB(far),
    PEER(word), PEER(id), PEER(pid), PEER(start), PEER(pidns), PEER(joined_ns), PEER(waiting),
    PEER(frames), PEER(lost), PEER(asked_ns), PEER(gpu), PEER(torn),
    SLOT(word), SLOT(producer), SLOT(fence), SLOT(time_ns), SLOT(since_ns), SLOT(ndim),
    SLOT(origin_lost), SLOT(origin_seq), SLOT(origin_time_ns), SLOT(shape),
    TAKE(word), TAKE(since_ns),
    TEAR(id), TEAR(reached),
    {NULL, NULL, 0, 0}};
