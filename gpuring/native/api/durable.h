/* Durable subscriptions, for the code that makes rings or joins them. */
#pragma once

#include "../core/subscriptions.h"
#include "opaque.h"

/* The name, checked and padded. */
gpuring_status subscription_named(const char *given, char name[GH_SUBSCRIPTION],
                                  gpuring_error *error);
/* What `start` of the options says. */
gpuring_status start_at(int64_t start, enum gr_start *from, uint64_t *at, gpuring_error *error);
/* gpuring_subscribe. options: NULL is its defaults. */
gpuring_status subscribe(gpuring_ring *ring, const char *subscription,
                         const gpuring_subscribe_options *options, gpuring_error *error);
/* The error of a refused join, or of a refused change of a subscription. subscription: NULL for a
 * producer. */
gpuring_status cannot_join(const gpuring_ring *ring, enum gr_result result,
                           const char *subscription, gpuring_error *error);
