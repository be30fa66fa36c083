/* Waiting, for the owner of a peer: first spin, then sleep. Under no lock of this library. */
#pragma once

#include "peer.h"

/* tests/native/programs/stress.c sets a longer slice, because sleeps that end by themselves hide
 * lost wake-ups. */
#ifndef GR_SLICE_NS
#define GR_SLICE_NS (INT64_C(50) * 1000 * 1000)
#endif
#define GR_SECOND_NS (INT64_C(1000) * 1000 * 1000)
#define GR_SLICE_MAX_NS (GR_SLICE_NS > GR_SECOND_NS ? GR_SLICE_NS : GR_SECOND_NS)
enum { GR_NAP_NS = 1000 * 1000,
       GR_WAKE_NS = 50 * 1000 /* what a wake-up by futex may take */,
       GR_LATE_NS = 65 * 1000 /* what one by timer may take, 50 µs of it slack */,
       GR_SPIN_SHARE = 50 /* one part in so many of a core may be spun at the ends of sleeps */,
       GR_SAVED_MAX_NS = 1000 * 1000 };
enum gr_result gr_spin(struct gr_peer *me, gr_verb verb);
enum gr_result gr_sleep(struct gr_peer *me, gr_verb verb); /* at most one slice, then GR_SIGNAL */
/* gr_ready, again and again for as long as the peer's fixed spin. */
enum gr_result gr_spin_ready(struct gr_peer *me, int64_t at_most_ns);
/* Call it after a join. -1: adaptive; INT64_MAX: never sleeps. */
void gr_set_spin(struct gr_peer *me, int64_t ns);

/* Waiting for several bells at once: the wait ends when one of them has left its value. */
enum { GR_MAX_WAITED = 128 }; /* what futex_waitv takes */
/* struct futex_waitv of linux/futex.h, which headers before Linux 5.16 lack. */
struct gr_waited {
    uint64_t value, address;
    uint32_t flags, reserved;
};
enum { GR_WAITED_U32 = 2, GR_WAITED_PRIVATE = 128 };
/* True: a signal interrupted the sleep. */
bool gr_wait_bells(struct gr_waited *waited, uint32_t n, int64_t until_ns);
enum gr_result gr_select(struct gr_peer *const *peers, uint32_t n, int64_t begun_ns,
                         int64_t deadline_ns, bool *ready);
