/* A file descriptor for each peer, readable when the peer's verb would not be blocked. For the
 * peer's owner, one thread at a time for each notifier. */
#pragma once

#include "peer.h"

struct gr_notifier;
struct gr_notifier *gr_notifier_open(void); /* NULL: errno */
enum gr_result gr_notifier_arm(struct gr_notifier *notifier, const struct gr_peer *me, bool at_end);
void gr_notifier_disarm(struct gr_notifier *notifier);
void gr_notifier_clear(struct gr_notifier *notifier); /* not readable before it is armed again */
void gr_notifier_raise(struct gr_notifier *notifier); /* readable from now on, and not armed */
void gr_notifier_close(struct gr_notifier *notifier);
/* Whether a notifier looks at this handle, which may not be given up then. */
bool gr_is_looked_at(const struct gr_ring *ring);
int gr_notifier_fd(const struct gr_notifier *notifier);
