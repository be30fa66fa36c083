#include "stream.h"

#include <string.h>

#include "waiting.h"

static void watch(Stream *stream, gboolean on) {
    if (stream->watched.fd >= 0) gst_poll_remove_fd(stream->cancel, &stream->watched);
    gst_poll_fd_init(&stream->watched);
    if (!on) return;
    stream->watched.fd = stream->reader->fd;
    gst_poll_add_fd(stream->cancel, &stream->watched);
    gst_poll_fd_ctl_read(stream->cancel, &stream->watched, TRUE);
}

void stream_leave(Stream *stream) {
    watch(stream, FALSE);
    if (stream->reader) reader_leave(stream->reader);
    stream->reader = NULL;
}

static gpuring_status use_gpu_of(Stream *stream, const gpuring_ring *ring, gpuring_error *error) {
    gpuring_info info = GPURING_INFO;
    gpuring_get_info(ring, &info);
    return gpu_use(&stream->gpu, info.device, error);
}

static gpuring_status join(Stream *stream, gpuring_ring *ring, gint64 from,
                           gpuring_error *error) {
    gpuring_consumer_options options = GPURING_CONSUMER_OPTIONS;
    options.subscription = stream->subscription;
    options.lossy = !stream->is_lossless;
    options.label = GST_OBJECT_NAME(stream->element);
    options.start = from;
    gpuring_status status = content_suits(stream->content, ring, stream->name, error)
                                ? GPURING_OK
                                : GPURING_INVALID;
    if (status == GPURING_OK && is_on_gpu(ring)) status = use_gpu_of(stream, ring, error);
    if (status != GPURING_OK) {
        gpuring_detach(ring, NULL);
        return status;
    }
    if (is_on_gpu(ring)) options.stream = stream->gpu.stream;
    Reader *reader = reader_new(ring, &options, error);
    if (!reader) return error->status;
    stream_leave(stream);
    stream->reader = reader;
    stream->is_new = TRUE;
    return GPURING_OK;
}

static gboolean is_same(const gpuring_ring *one, const gpuring_ring *other) {
    gpuring_info a = GPURING_INFO, b = GPURING_INFO;
    gpuring_get_info(one, &a);
    gpuring_get_info(other, &b);
    return memcmp(a.epoch, b.epoch, sizeof a.epoch) == 0;
}

static gpuring_status open_ring(Stream *stream, gpuring_error *error) {
    gpuring_ring *ring;
    const gpuring_status status =
        wait_for_ring(stream->cancel, stream->name, stream->timeout_s, stream->device,
                      stream->owner, &ring, error);
    return status == GPURING_OK ? join(stream, ring, GPURING_START_NEXT, error) : status;
}

static gboolean has_producer(const gpuring_ring *ring) {
    gpuring_info info = GPURING_INFO;
    gpuring_get_info(ring, &info);
    return info.live_producers > 0;
}

/* How many sequences from this one on are gone for a consumer that joins now. 0 for a named
 * subscription, because its other members may have had them. */
static guint64 gone_from(const Stream *stream, const gpuring_ring *ring, gint64 from) {
    gpuring_info info = GPURING_INFO;
    if (stream->subscription || from < 0) return 0;
    gpuring_get_info(ring, &info);
    const guint64 oldest = info.next_seq + 1 - info.slots; /* where a join begins */
    return oldest > (guint64)from ? oldest - (guint64)from : 0;
}

static void say(const Stream *stream, const char *what) {
    gpuring_error said;
    tell(&said, GPURING_OK, "ring '%s': %s", stream->name, what);
    post_info(stream->element, &said);
}

static gpuring_status join_again(Stream *stream, gpuring_ring *ring, gint64 from, const char *why,
                                 gpuring_error *error) {
    const gpuring_status status = join(stream, ring, from, error);
    if (status == GPURING_OK) say(stream, why);
    return status;
}

/* After the end of the stream: waits for a new ring of the name, or for a new producer in the same
 * ring. In the same ring the source has stayed a member, so it misses no frame. If it was taken for
 * dead, it joins again behind the last frame that it had. */
static gpuring_status go_on(Stream *stream, gboolean is_dead, gpuring_error *error) {
    gpuring_ring *ring;
    watch(stream, FALSE); /* it stays readable */
    if (!wait_for_fd(stream->cancel, 100 * GST_MSECOND)) return CANCELLED;
    const gpuring_status status =
        wait_for_ring(stream->cancel, stream->name, stream->timeout_s, stream->device,
                      stream->owner, &ring, error);
    if (status != GPURING_OK) return status;
    if (!is_same(ring, stream->reader->ring))
        return join_again(stream, ring, GPURING_START_OLDEST,
                          "this source goes on in the next ring of that name", error);
    if (is_dead) {
        const gint64 from = reader_next(stream->reader);
        stream->missed += gone_from(stream, ring, from);
        return join_again(stream, ring, from,
                          "this source was taken for dead, and has joined again", error);
    }
    gpuring_detach(ring, NULL);
    return GPURING_OK;
}

/* *is_dead: whether this consumer was taken for dead, because its process has lost its locks. Then
 * the answer is GPURING_PEER_LOST although a producer lives. That producer may also have joined after
 * the first answer, so the second answer decides. */
static gpuring_status acquire(Stream *stream, gpuring_slot *slot, gboolean *is_dead,
                              gpuring_error *error) {
    gpuring_status status = reader_acquire(stream->reader, slot, error);
    *is_dead = FALSE;
    if (status != GPURING_PEER_LOST || !has_producer(stream->reader->ring)) return status;
    status = reader_acquire(stream->reader, slot, error);
    *is_dead = status == GPURING_PEER_LOST && has_producer(stream->reader->ring);
    return status;
}

/* A sink keeps its last buffer until it shows another one. If it drops all of them, because they are
 * late, its buffer would hold up the producer for ever. It copies that buffer if it is asked. */
static void ask_back(Stream *stream) {
    if (!reader_is_owed(stream->reader)) return;
    GstQuery *query = gst_query_new_drain();
    gst_pad_peer_query(GST_BASE_SRC_PAD(stream->element), query);
    gst_query_unref(query);
}

static gpuring_status next_frame(Stream *stream, gpuring_slot *slot, gboolean *is_dead,
                                 gpuring_error *error) {
    ask_back(stream);
    if (stream->watched.fd < 0) watch(stream, TRUE);
    for (;;) {
        const gpuring_status status = acquire(stream, slot, is_dead, error);
        if (status != GPURING_TIMEOUT) return status;
        if (!wait_for_fd(stream->cancel, GST_CLOCK_TIME_NONE)) return CANCELLED;
    }
}

gboolean stream_is_end(gpuring_status status) {
    return status == GPURING_END_OF_STREAM || status == GPURING_CLOSED;
}

gpuring_status stream_acquire(Stream *stream, gpuring_slot *slot, gpuring_error *error) {
    gboolean is_told = FALSE, is_dead;
    gpuring_status status = stream->reader ? GPURING_OK : open_ring(stream, error);
    while (status == GPURING_OK) {
        status = next_frame(stream, slot, &is_dead, error);
        if (status == GPURING_OK) {
            if (is_told && !stream->is_new) say(stream, "goes on with the next producer");
            slot->lost += stream->missed;
            stream->missed = 0;
            return status;
        }
        const gboolean may_begin_anew = stream_is_end(status) || status == GPURING_PEER_LOST;
        if (!stream->follows || !may_begin_anew) return status;
        if (!is_told) post_info(stream->element, error);
        is_told = TRUE;
        status = go_on(stream, is_dead, error);
    }
    return status;
}

void stream_init(Stream *stream, GstElement *element, const Content *content) {
    stream->element = element;
    stream->content = content;
    stream->timeout_s = -1;
    stream->device = GPURING_DEVICE_DEFAULT;
    stream->owner = -1;
    gpu_init(&stream->gpu, element);
    stream->is_lossless = TRUE;
    stream->cancel = gst_poll_new(TRUE);
    gst_poll_fd_init(&stream->watched);
}

void stream_clear(Stream *stream) {
    stream_leave(stream);
    gpu_clear(&stream->gpu);
    gst_poll_free(stream->cancel);
    g_free(stream->name);
    g_free(stream->subscription);
}
