#include "writer.h"

#include <gst/base/gstbasesink.h>
#include <string.h>

#include "making.h"
#include "waiting.h"

void writer_leave(Writer *writer) {
    if (writer->producer) gst_poll_remove_fd(writer->cancel, &writer->watched);
    gst_poll_fd_init(&writer->watched);
    gpuring_error error; /* the close waits for what it has copied */
    if (gpuring_close_producer(writer->producer, &error) != GPURING_OK)
        post_warning(writer->element, &error); /* readers do not get the end yet */
    writer->producer = NULL;
    gst_clear_buffer(&writer->copied);
}

void writer_give_up(Writer *writer) {
    writer_leave(writer);
    gpuring_detach(writer->ring, NULL);
    writer->ring = NULL;
    writer->was_awaited = FALSE;
}

static gpuring_status join(Writer *writer, gpuring_error *error) {
    gpuring_producer_options options = GPURING_PRODUCER_OPTIONS;
    options.label = GST_OBJECT_NAME(writer->element);
    options.stream = writer->gpu.stream;
    gpuring_status status = gpuring_join_producer(writer->ring, &options, &writer->producer, error);
    if (status != GPURING_OK) return status;
    gst_poll_fd_init(&writer->watched);
    status = gpuring_producer_fd(writer->producer, &writer->watched.fd, error);
    if (status != GPURING_OK) {
        gpuring_close_producer(writer->producer, NULL);
        writer->producer = NULL;
        return status;
    }
    gst_poll_add_fd(writer->cancel, &writer->watched);
    gst_poll_fd_ctl_read(writer->cancel, &writer->watched, TRUE);
    return GPURING_OK;
}

/* The GPU on which the ring is used. */
static gint device_of(const Writer *writer) {
    return writer->layout.is_on_gpu ? writer->gpu.number : GPURING_DEVICE_DEFAULT;
}

static gpuring_status make(Writer *writer, gpuring_replace replace, gpuring_error *error) {
    const gpuring_memory memory = !writer->layout.is_on_gpu       ? GPURING_MEMORY_HOST
                                  : writer->memory == ANY_MEMORY ? GPURING_MEMORY_AUTO
                                                                 : (gpuring_memory)writer->memory;
    return make_ring(writer->name, writer->slots, &writer->layout, memory, device_of(writer),
                     replace, &writer->ring, error);
}

/* Whether the frames fit into the slots. If so, notes where each plane lies. */
static gboolean fits(Writer *writer, gpuring_error *error) {
    if (is_on_gpu(writer->ring) == writer->layout.is_on_gpu)
        return layout_place(&writer->layout, &(Slots){writer->ring, NULL}, error);
    tell(error, GPURING_INVALID,
         writer->layout.is_on_gpu
             ? "ring '%s' is in host memory, and the frames are on a GPU. Put cudadownload before "
               "gpuringsink"
             : "ring '%s' is on a GPU, and the frames are in host memory. Put cudaupload before "
               "gpuringsink",
         writer->name);
    return FALSE;
}

/* The name is taken. If a running program writes that ring, this fails, because frames of two
 * programs would be mixed. If its creator is dead, the ring is used, so that its readers go on. If
 * the frames do not fit into its slots, a new ring replaces it. */
static gpuring_status take_over(Writer *writer, gpuring_error *error) {
    gpuring_info info = GPURING_INFO;
    const gpuring_status status = attach_ring(writer->name, 0, device_of(writer), -1, &writer->ring, error);
    /* Its memory was on a GPU, and was freed with its creator.  Or another ring is being removed just now. */
    if (status == GPURING_PEER_LOST || status == GPURING_NOT_FOUND)
        return make(writer, GPURING_REPLACE_DEAD, error);
    if (status != GPURING_OK) return status;
    gpuring_get_info(writer->ring, &info);
    const gboolean is_free = !info.creator_alive && info.live_producers == 0;
    if (is_free && fits(writer, error)) return GPURING_OK;
    writer_give_up(writer);
    if (is_free) return make(writer, GPURING_REPLACE_DEAD, error);
    if (info.creator_alive)
        tell(error, GPURING_EXISTS,
             "ring '%s' is in use: its creator, pid %" G_GUINT64_FORMAT ", is alive. Choose another "
             "name, or write into this ring with create=false",
             writer->name, info.creator_pid);
    else
        tell(error, GPURING_EXISTS,
             "ring '%s' is in use: it has a producer. Choose another name, or write into this ring, "
             "too, with create=false",
             writer->name);
    return error->status;
}

/* Called after an unlock(): waits until the pipeline plays, or steps. FALSE: the element has to
 * stop. */
static gboolean may_go_on_after_pause(Writer *writer) {
    return gst_base_sink_wait_preroll(GST_BASE_SINK(writer->element)) != GST_FLOW_FLUSHING;
}

static gpuring_status open_ring(Writer *writer, gpuring_error *error) {
    gpuring_status status;
    if (!writer->creates) {
        do status = wait_for_ring(writer->cancel, writer->name, writer->timeout_s,
                                   device_of(writer), writer->owner, &writer->ring, error);
        while (status == CANCELLED && may_go_on_after_pause(writer));
        return status;
    }
    status = make(writer, GPURING_REPLACE_NONE, error);
    return status == GPURING_EXISTS ? take_over(writer, error) : status;
}

static gboolean may_go_on(Writer *writer, GstClockTime timeout) {
    return wait_for_fd(writer->cancel, timeout) || may_go_on_after_pause(writer);
}

static gpuring_status await_readers(Writer *writer) {
    gpuring_info info = GPURING_INFO;
    while (!writer->was_awaited) {
        gpuring_get_info(writer->ring, &info);
        writer->was_awaited = info.live_consumers >= writer->readers;
        if (!writer->was_awaited && !may_go_on(writer, 20 * GST_MSECOND)) return CANCELLED;
    }
    return GPURING_OK;
}

/* Finds or makes a ring into whose slots the frames fit. */
static gpuring_status place(Writer *writer, gpuring_error *error) {
    gpuring_status status = GPURING_OK;
    if (writer->ring && fits(writer, error)) return GPURING_OK;
    if (writer->ring && !writer->creates) return GPURING_INVALID;
    writer_give_up(writer);
    status = open_ring(writer, error);
    if (status != GPURING_OK) return status;
    metadata_of(&writer->metadata, writer->ring);
    return fits(writer, error) ? GPURING_OK : GPURING_INVALID;
}

gpuring_status writer_prepare(Writer *writer, gpuring_error *error) {
    if (!writer->text) {
        tell(error, GPURING_INVALID,
             "ring '%s': the buffers have no caps, which say what they hold. Put a decoder before "
             "gpuringsink, or, if they are raw, rawvideoparse or rawaudioparse",
             writer->name);
        return GPURING_INVALID;
    }
    gpuring_status status = writer->is_placed ? GPURING_OK : place(writer, error);
    const gsize room = writer->metadata.caps.nbytes;
    if (status == GPURING_OK && room && strlen(writer->text) > room) {
        tell(error, GPURING_INVALID,
             "ring '%s': the metadata `caps` has room for %d bytes, and not for these caps: %s",
             writer->name, (gint)room, writer->text);
        return GPURING_INVALID;
    }
    writer->is_placed = status == GPURING_OK;
    if (status == GPURING_OK) status = await_readers(writer);
    if (status == GPURING_OK && !writer->producer) status = join(writer, error);
    return status;
}

gpuring_status writer_await_copy(Writer *writer, gpuring_error *error) {
    gpuring_status status;
    do status = wait_for_copies(&writer->gpu, writer->cancel, &writer->watched, error);
    while (status == CANCELLED && may_go_on_after_pause(writer));
    if (status == CANCELLED) return status;
    gst_clear_buffer(&writer->copied);
    return status;
}

/* Of a closed ring the library says how a program goes on in the next one. A pipeline cannot, without
 * the property `reattach`. */
static gpuring_status claim(Writer *writer, gpuring_slot *slot, gpuring_error *error) {
    const gpuring_status status = writer->drops
                                      ? gpuring_try_claim(writer->producer, slot, error)
                                      : gpuring_claim(writer->producer, 0, slot, error);
    if (status == GPURING_CLOSED)
        tell(error, status,
             "ring '%s' was closed, or another ring took its name. Start the pipeline again to write "
             "into the next ring of that name",
             writer->name);
    return status;
}

/* Leaves a closed ring, so that the next call looks for another one, in whose slots its frames may lie
 * elsewhere. */
static gboolean leave_closed(Writer *writer) {
    gpuring_error said;
    tell(&said, GPURING_CLOSED,
         "ring '%s' was closed, or another ring took its name. This sink goes on in the next ring of that "
         "name",
         writer->name);
    post_info(writer->element, &said);
    writer_give_up(writer);
    writer->is_placed = FALSE;
    return may_go_on(writer, 20 * GST_MSECOND);
}

gpuring_status writer_claim(Writer *writer, gpuring_slot *slot, gpuring_error *error) {
    for (;;) {
        gpuring_status status = writer_prepare(writer, error);
        if (status != GPURING_OK) return status;
        status = claim(writer, slot, error);
        if (status == GPURING_CLOSED && writer->follows && !writer->creates) {
            if (!leave_closed(writer)) return CANCELLED;
            continue;
        }
        if (status != GPURING_FULL || writer->drops) return status;
        if (!may_go_on(writer, GST_CLOCK_TIME_NONE)) return CANCELLED;
    }
}

void writer_init(Writer *writer, GstElement *element) {
    writer->element = element;
    writer->slots = 8;
    writer->creates = TRUE;
    writer->timeout_s = -1;
    writer->owner = -1;
    writer->memory = ANY_MEMORY;
    gpu_init(&writer->gpu, element);
    writer->cancel = gst_poll_new(TRUE);
    gst_poll_fd_init(&writer->watched);
}

void writer_clear(Writer *writer) {
    gpu_clear(&writer->gpu);
    gst_poll_free(writer->cancel);
    g_free(writer->text);
    g_free(writer->name);
}
