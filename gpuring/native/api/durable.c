/* Durable subscriptions. */
#include "durable.h"

#include <errno.h>
#include <string.h>

#include "../core/handles.h"
#include "../host/diagnosis.h"
#include "../host/debts.h"
#include "../host/making.h"

gpuring_status subscription_named(const char *given, char name[GH_SUBSCRIPTION],
                                  gpuring_error *error) {
    const size_t nbytes = given ? strlen(given) : 0;
    const gpuring_status status = gh_check_subscription(given ? given : "", nbytes, error);
    memset(name, 0, GH_SUBSCRIPTION);
    if (status == GPURING_OK) memcpy(name, given, nbytes);
    return status;
}

gpuring_status start_at(int64_t start, enum gr_start *from, uint64_t *at, gpuring_error *error) {
    if (start < GPURING_START_OLDEST || start >= INT64_C(1) << 47)
        return gh_fail(error, GPURING_INVALID,
                       "start is GPURING_START_NEXT, GPURING_START_OLDEST or a sequence, not %lld",
                       (long long)start);
    *from = start == GPURING_START_NEXT     ? GR_START_NEXT
            : start == GPURING_START_OLDEST ? GR_START_OLDEST
                                            : GR_START_AT;
    *at = *from == GR_START_AT ? (uint64_t)start : 0;
    return GPURING_OK;
}

gpuring_status cannot_join(const gpuring_ring *ring, enum gr_result result,
                           const char *subscription, gpuring_error *error) {
    char text[sizeof error->text];
    struct gh_text words = gh_begin_text(text, sizeof text);
    if (result == GR_SYSTEM) return gh_fail_system(error, errno, ring->name);
    const gpuring_status status = gh_add_cannot_join(&words, ring->name, ring->header, result,
                                                     subscription ? subscription : "");
    return gh_fail(error, status, "%s", text);
}

gpuring_status subscribe(gpuring_ring *ring, const char *subscription,
                         const gpuring_subscribe_options *given, gpuring_error *error) {
    OPTIONS_OF(gpuring_subscribe_options, patience_ns, given, GPURING_SUBSCRIBE_OPTIONS, error);
    NEED_NS(&options, patience_ns, GPURING_FOREVER, error);
    char name[GH_SUBSCRIPTION];
    struct gr_terms terms = {.mode = options.lossy ? GR_LOSSY : GR_LOSSLESS,
                             .policy = options.drop ? GR_DROP : GR_REDELIVER};
    terms.patience_ns = options.patience_ns < 0 ? INT64_MAX : (uint64_t)options.patience_ns;
    gpuring_status status = subscription_named(subscription, name, error);
    if (status == GPURING_OK)
        status = start_at(options.start, &terms.from, &terms.start, error);
    if (status != GPURING_OK) return status;
    const enum gr_result result = gr_subscribe(ring->header, name, &terms);
    return result == GR_OK ? GPURING_OK : cannot_join(ring, result, name, error);
}

gpuring_status gpuring_subscribe(gpuring_ring *ring, const char *subscription,
                                 const gpuring_subscribe_options *options, gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED(ring, error);
    return subscribe(ring, subscription, options, error);
}

gpuring_status gpuring_unsubscribe(gpuring_ring *ring, const char *subscription, bool *found,
                                   gpuring_error *error) {
    MIND_NO_ERROR(error);
    NEED(ring, error);
    char name[GH_SUBSCRIPTION];
    bool there;
    gpuring_status status = subscription_named(subscription, name, error);
    if (status != GPURING_OK) return status;
    const bool owed = gh_may_owe(ring->header);
    const enum gr_result result = gr_unsubscribe(ring->header, name, found ? found : &there);
    if (result != GR_OK) return cannot_join(ring, result, name, error);
    if (owed) status = gh_forget(ring->name, ring->header, name, error);
    if (status == GPURING_OK && gr_load_acquire(&ring->header->head->closed))
        status = gh_remove_own(ring->name, ring->epoch, ring->header, error); /* kept for this */
    return status;
}
