/* How a consumer ends what it has. */
#pragma once

#include "peer.h"

enum gr_result gr_release(struct gr_peer *me, uint32_t index, uint64_t seq);
enum gr_result gr_give_back(struct gr_peer *me, uint32_t index, uint64_t seq);
enum gr_result gr_return(struct gr_peer *me, uint32_t index, uint64_t seq);
void gr_skip_torn(struct gr_peer *me);
/* Whether this peer, of either role, has the slot, and for which sequence. */
bool gr_holds(struct gr_peer *me, uint32_t index, uint64_t *seq);
