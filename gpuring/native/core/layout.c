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
const struct gr_field gr_fields[] = {
    FIELD("head", struct gr_head, magic), FIELD("head", struct gr_head, version),
    FIELD("head", struct gr_head, memory), FIELD("head", struct gr_head, sync),
    FIELD("head", struct gr_head, gate), FIELD("head", struct gr_head, nbytes),
    FIELD("head", struct gr_head, epoch), FIELD("head", struct gr_head, slots),
    FIELD("head", struct gr_head, max_peers), FIELD("head", struct gr_head, max_subscriptions),
    FIELD("head", struct gr_head, spec_nbytes), FIELD("head", struct gr_head, slot_nbytes),
    FIELD("head", struct gr_head, meta_nbytes), FIELD("head", struct gr_head, created_ns),
    FIELD("head", struct gr_head, creator_pid), FIELD("head", struct gr_head, creator_start),
    FIELD("head", struct gr_head, creator_pidns), FIELD("head", struct gr_head, device_uuid),
    FIELD("head", struct gr_head, memory_handle), FIELD("head", struct gr_head, claim_hint),
    FIELD("head", struct gr_head, bell), FIELD("head", struct gr_head, waiters),
    FIELD("head", struct gr_head, closed), FIELD("head", struct gr_head, producers),
    FIELD("head", struct gr_head, sub_mask), FIELD("head", struct gr_head, peer_mask),
    FIELD("head", struct gr_head, joins), FIELD("head", struct gr_head, reaps),
    FIELD("head", struct gr_head, deaths), FIELD("head", struct gr_head, link_turn),
    FIELD("head", struct gr_head, links), FIELD("link", struct gr_link, epoch),
    FIELD("link", struct gr_link, seq), FIELD("link", struct gr_link, lost),
    FIELD("link", struct gr_link, first), FIELD("link", struct gr_link, passed),
    FIELD("link", struct gr_link, passed_lost), FIELD("death", struct gr_death, time_ns),
    FIELD("death", struct gr_death, pid), FIELD("death", struct gr_death, peer),
    FIELD("death", struct gr_death, number), FIELD("death", struct gr_death, voided),
    FIELD("death", struct gr_death, torn), FIELD("death", struct gr_death, reopened),
    FIELD("death", struct gr_death, raised),
    FIELD("sub", struct gr_sub, word), FIELD("sub", struct gr_sub, redo),
    FIELD("sub", struct gr_sub, lost), FIELD("sub", struct gr_sub, created_ns),
    FIELD("sub", struct gr_sub, name), FIELD("sub", struct gr_sub, far),
    FIELD("peer", struct gr_peer_entry, word),
    FIELD("peer", struct gr_peer_entry, id), FIELD("peer", struct gr_peer_entry, pid),
    FIELD("peer", struct gr_peer_entry, start), FIELD("peer", struct gr_peer_entry, pidns),
    FIELD("peer", struct gr_peer_entry, joined_ns), FIELD("peer", struct gr_peer_entry, waiting),
    FIELD("peer", struct gr_peer_entry, frames), FIELD("peer", struct gr_peer_entry, lost),
    FIELD("peer", struct gr_peer_entry, asked_ns), FIELD("peer", struct gr_peer_entry, gpu),
    FIELD("peer", struct gr_peer_entry, torn), FIELD("slot", struct gr_slot, word),
    FIELD("slot", struct gr_slot, producer), FIELD("slot", struct gr_slot, fence),
    FIELD("slot", struct gr_slot, time_ns), FIELD("slot", struct gr_slot, since_ns),
    FIELD("slot", struct gr_slot, ndim), FIELD("slot", struct gr_slot, origin_lost),
    FIELD("slot", struct gr_slot, origin_seq), FIELD("slot", struct gr_slot, origin_time_ns),
    FIELD("slot", struct gr_slot, shape),
    FIELD("take", struct gr_take, word), FIELD("take", struct gr_take, since_ns),
    FIELD("tear", struct gr_tear, id), FIELD("tear", struct gr_tear, reached),
    {NULL, NULL, 0, 0}};
