/* The whole of the core, for programs that test it. */
#pragma once

#include "../../../gpuring/native/core/acquire.h"
#include "../../../gpuring/native/core/annex.h"
#include "../../../gpuring/native/core/bell.h"
#include "../../../gpuring/native/core/claim.h"
#include "../../../gpuring/native/core/earlier.h"
#include "../../../gpuring/native/core/exchange_fetch.h"
#include "../../../gpuring/native/core/exchange_offer.h"
#include "../../../gpuring/native/core/handles.h"
#include "../../../gpuring/native/core/header.h"
#include "../../../gpuring/native/core/lock.h"
#include "../../../gpuring/native/core/members.h"
#include "../../../gpuring/native/core/notify.h"
#include "../../../gpuring/native/core/peer.h"
#include "../../../gpuring/native/core/reap.h"
#include "../../../gpuring/native/core/release.h"
#include "../../../gpuring/native/core/tear.h"
#include "../../../gpuring/native/core/trace.h"
#include "../../../gpuring/native/core/wait.h"
#include "../../../gpuring/native/core/watchdog.h"

/* Promises the end of the peer's work on the slot that it has, and says that it is done. */
static inline void pay(struct gr_peer *me, uint64_t *value) {
    *value = gr_promise(me, me->last.index, me->last.seq);
    gr_raise_to(fence_of(me->ring, me->last.index, me->self.number), *value);
}
