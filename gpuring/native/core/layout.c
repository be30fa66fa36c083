/* Where the tables of a header are, as its counts say, and where each field is. */
#include "layout.h"

#include <stdio.h>

static uint64_t aligned(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

static bool within(const char *field, uint64_t value, uint64_t low, uint64_t high, char *why,
                   size_t why_nbytes) {
    if (low <= value && value <= high) return true;
    snprintf(why, why_nbytes, "%s is %llu, not %llu to %llu", field, (unsigned long long)value,
             (unsigned long long)low, (unsigned long long)high);
    return false;
}

bool gr_layout(const struct gr_config *config, struct gr_layout *layout, char *why,
               size_t why_nbytes) {
#define WITHIN(field, low, high) within(#field, config->field, low, high, why, why_nbytes)
    bool host = config->memory == GR_MEMORY_HOST;
    if (!WITHIN(slots, 1, GR_MAX_SLOTS)) return false;
    if (!WITHIN(max_peers, 1, GR_MAX_PEERS)) return false;
    if (!WITHIN(max_subscriptions, 1, GR_MAX_SUBSCRIPTIONS)) return false;
    if (!WITHIN(memory, 0, GR_MEMORY_POOL)) return false;
    if (!WITHIN(sync, host ? GR_SYNC_HOST : GR_SYNC_EVENT,
                host ? GR_SYNC_HOST : GR_SYNC_TIMELINE))
        return false;
    if (!WITHIN(gate, 0, GR_GATE_HOST)) return false;
    if (!WITHIN(slot_nbytes, 1, GR_MAX_SLOT_NBYTES)) return false;
    if (!WITHIN(meta_nbytes, 0, GR_MAX_META)) return false;
    if (!WITHIN(spec_nbytes, 1, GR_MAX_SPEC)) return false;
#undef WITHIN

    uint64_t n = config->slots, at = GR_PAGE;
    uint64_t events = config->sync == GR_SYNC_EVENT ? n * config->max_peers * GR_EVENT_HANDLE : 0;
    uint64_t words = n * config->max_peers * sizeof(gr_word);
    layout->meta_stride = aligned(config->meta_nbytes, GR_LINE);
    layout->sub = at, at += config->max_subscriptions * sizeof(struct gr_sub);
    layout->peer = at, at += config->max_peers * sizeof(struct gr_peer_entry);
    layout->slot = at, at += n * sizeof(struct gr_slot);
    layout->take = at,
        at = aligned(at + n * config->max_subscriptions * sizeof(struct gr_take), GR_LINE);
    layout->tear = at, at = aligned(at + n * config->max_peers * sizeof(struct gr_tear), GR_LINE);
    layout->work = at, at = aligned(at + words, GR_PAGE);
    layout->fence = at, at = aligned(at + words, GR_PAGE);
    layout->event = at, at += events;
    layout->meta = at, at += n * layout->meta_stride;
    layout->spec = at, at += config->spec_nbytes;
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
