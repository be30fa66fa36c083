"""What Cython has to know of core/*.h, host/*.h, device/*.h and memory/*.h.  Declarations only."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "core/atomics.h" nogil:
    ctypedef uint64_t gr_word "gr_word"
    ctypedef uint32_t gr_word32 "gr_word32"
    ctypedef bint gr_bool "bool"
    uint64_t gr_load_acquire(const gr_word *word)
    uint32_t gr_load_acquire32 "gr_load_acquire"(const gr_word32 *word)
    void gr_raise_to(gr_word *word, uint64_t value)

cdef extern from "core/words.h" nogil:
    int GR_NONE
    int GR_FREE, GR_LEAVING, GR_PRODUCER, GR_CONSUMER
    int GR_SUB_FREE, GR_LOSSLESS, GR_LOSSY, GR_REDELIVER, GR_DROP, GR_DURABLE
    int GR_WRITING, GR_READY, GR_HELD
    uint64_t seq_of(uint64_t)
    unsigned owner_of(uint64_t)
    unsigned phase_of(uint64_t)
    unsigned state_of(uint64_t)
    unsigned role_of(uint64_t)
    unsigned sub_of(uint64_t)
    unsigned mode_of(uint64_t)
    unsigned policy_of(uint64_t)
    uint64_t start_of(uint64_t)
    uint64_t left_of(uint64_t)
    uint64_t died_of(uint64_t)
    uint64_t GR_GIVEN_UP

cdef extern from "core/layout.h" nogil:
    int GR_VERSION_ "GR_VERSION"
    int GR_MAX_SLOTS_ "GR_MAX_SLOTS", GR_MAX_PEERS_ "GR_MAX_PEERS"
    int GR_MAX_SUBSCRIPTIONS_ "GR_MAX_SUBSCRIPTIONS", GR_MAX_META_ "GR_MAX_META"
    uint64_t GR_MAX_SLOT_NBYTES
    int GR_MAX_SPEC
    enum gr_memory:
        GR_MEMORY_HOST, GR_MEMORY_VMM, GR_MEMORY_PINNED
    enum gr_sync: pass
    enum gr_gate: pass
    int GR_MAX_NDIM, GR_NAME_WORDS, GR_FAR_WORDS, GR_LABEL_WORDS, GR_DEATHS, GR_MAX_PRODUCERS
    enum: GR_MASK_WORDS
    struct gr_config:
        uint32_t slots, max_peers, max_subscriptions, memory, sync, gate, producers, spec_nbytes
        uint64_t slot_nbytes, meta_nbytes
    struct gr_layout:
        uint64_t nbytes, meta_stride
    struct gr_death:
        gr_word time_ns, pid, peer, number, voided, torn, reopened, raised
        gr_word label[8]
    struct gr_head:
        uint8_t epoch[16]
        uint8_t device_uuid[16]
        uint8_t memory_handle[64]
        uint64_t created_ns, creator_pid, creator_pidns
        gr_word magic, closed, producers, joins, reaps, dropped
        gr_death deaths[8]
    struct gr_sub:
        gr_word word, lost, created_ns, patience_ns, unread_ns, earlier
        gr_word name[8]
        gr_word far[4]
    struct gr_peer_entry:
        gr_word word, id, pid, start, pidns, joined_ns, waiting, frames, lost, torn, asked_ns
        gr_word dropped, ended_at
        gr_word gpu[2]
        gr_word label[8]
        gr_word unregistered
    struct gr_slot:
        gr_word word, producer, fence, time_ns, since_ns
        gr_word32 ndim
        gr_word shape[8]
    struct gr_take:
        gr_word word, since_ns
    bint gr_layout_of "gr_layout"(const gr_config *, gr_layout *, char *, size_t)

cdef extern from "core/ring.h" nogil:
    enum gr_result:
        GR_OK, GR_BLOCKED, GR_CLOSED, GR_ENDED, GR_PEER_LOST, GR_REAPED, GR_FORKED, GR_DAMAGED
        GR_SIGNAL, GR_FULL_PEERS, GR_FULL_SUBS, GR_MODE_MISMATCH, GR_LOCK_TIMEOUT, GR_SYSTEM
        GR_DEVICE, GR_PRODUCER_DIED, GR_TORN_BEHIND
    struct gr_ring:
        gr_head *head
        gr_sub *sub
        gr_peer_entry *peer
        gr_slot *slot
        uint8_t *meta
        uint8_t *spec
        uint32_t slots, max_peers, max_subscriptions, producers_in_all
        gr_layout layout
        gr_config config
        int lock_fd
        int64_t join_patience_ns
        uint64_t pid, start, pidns
        uint64_t gpu[2]
        uint64_t unregistered
    gr_take *take_of(const gr_ring *, uint64_t, uint64_t)
    gr_word *work_of(const gr_ring *, uint64_t, uint64_t)
    gr_word *fence_of(const gr_ring *, uint64_t, uint64_t)

cdef extern from "core/process.h" nogil:
    struct gr_who:
        uint64_t pid

cdef extern from "core/handles.h" nogil:
    void gr_close_aside(int)
    void gr_disown(gr_ring *)
    void gr_detach(gr_ring *)
    bint gr_forked(const gr_ring *)

cdef extern from "core/peer.h" nogil:
    enum gr_reason:
        GR_BY_PRODUCER, GR_BY_HOLDER, GR_BY_SUBSCRIPTION, GR_BY_NO_FRAME, GR_BY_FENCE

    struct gr_culprit:
        gr_reason reason
        uint32_t peer, subscription
        uint64_t seq, since_ns
    struct gr_identity:
        uint32_t number, role, u, mode
        uint64_t id
        gr_bool left, dropped
        gr_word32 stopping
    struct gr_cursor:
        uint64_t pos, told_from
        gr_bool first, follows, counts_on, told_deaths
        uint32_t lost_before
    struct gr_delivery:
        uint64_t seq, lost, upstream, producer_id, value
        uint32_t index, producer
        gr_bool redelivered
        gr_culprit culprit
    struct gr_peer:
        gr_ring *ring
        gr_identity self
        gr_cursor cursor
        gr_delivery last
    ctypedef gr_result (*gr_verb)(gr_peer *)

cdef extern from "core/trace.h" nogil:
    enum: GR_TRACE_EVENTS
    int64_t GR_TRACE_NS
    enum gr_event_kind:
        GR_DID_JOIN, GR_DID_LEAVE, GR_DID_CLAIM, GR_DID_PUBLISH, GR_DID_ABANDON, GR_DID_ACQUIRE
        GR_DID_RELEASE, GR_DID_RETURN, GR_DID_DROP, GR_DID_TEAR, GR_DID_WAIT, GR_DID_STOP
        GR_DID_CALL, GR_DID_BEGIN, GR_DID_END
    struct gr_trace_event:
        pass
    struct gr_tracer:
        uint32_t peers
        size_t fences_nbytes
        uint64_t missed[250]
    bint gr_traced(const gr_ring *)
    void gr_trace(const gr_peer *, int64_t, gr_event_kind, uint64_t, uint64_t, uint64_t)
    void gr_annotate(gr_event_kind, const char *)
    gr_tracer *gr_trace_begin(int, const char **, char *, size_t)
    bint gr_trace_on(gr_tracer *)
    int gr_trace_read(gr_tracer *, uint32_t, gr_trace_event *, uint32_t)
    int gr_trace_fences(const gr_tracer *, uint64_t *)
    void gr_trace_off(gr_tracer *)
    void gr_trace_end(gr_tracer *)

cdef extern from "core/bell.h" nogil:
    int64_t gr_now_ns()
    enum: GR_SLEEPING
    void gr_announce(const gr_peer *, uint64_t)
    void gr_withdraw(const gr_peer *, uint64_t)

cdef extern from "core/lock.h" nogil:
    int GR_CREATOR_BYTE, GR_NAME_BYTE, GR_SETTLING_BYTE
    bint gr_peer_alive(gr_ring *, uint32_t)
    bint gr_creator_alive(gr_ring *)
    bint gr_attached(gr_ring *)

cdef extern from "core/header.h" nogil:
    gr_ring *gr_create(int, const gr_config *, const uint8_t *, const uint8_t *, const uint8_t *, const void *)
    gr_ring *gr_attach(int, const char **, char *, size_t)
    gr_ring *gr_read(int, const char **, char *, size_t)
    void gr_retire(gr_ring *)

cdef extern from "core/annex.h" nogil:
    struct gr_origin:
        uint64_t seq, time_ns
        uint32_t lost
    struct gr_watermark:
        uint8_t epoch[16]
        uint64_t seq, lost
    gr_result gr_set_origin(gr_peer *, uint32_t, uint64_t, const gr_origin *)
    bint gr_origin_of "gr_origin"(const gr_slot *, gr_origin *)
    void gr_set_link(gr_ring *, const gr_watermark *)
    bint gr_link(const gr_ring *, gr_watermark *)
    struct gr_ahead:
        int64_t ahead_ns, error_ns, time_ns
    void gr_set_clock(gr_ring *, const gr_ahead *)
    bint gr_clock(const gr_ring *, gr_ahead *)
    void gr_set_far(gr_ring *, uint32_t, const char *)
    void gr_ask(const gr_peer *)

cdef extern from "core/claim.h" nogil:
    uint64_t gr_frontier(gr_ring *)
    void gr_drop(gr_peer *)

cdef extern from "core/acquire.h" nogil:
    gr_result gr_acquire(gr_peer *)
    gr_result gr_latest(gr_peer *)
    void gr_count_before(gr_peer *)
    void gr_count_since(gr_peer *, int64_t)
    gr_result gr_look(const gr_peer *, uint64_t *, gr_culprit *)
    gr_result gr_ready(const gr_peer *)

cdef extern from "core/release.h" nogil:
    bint gr_holds(gr_peer *, uint32_t, uint64_t *)

cdef extern from "core/tear.h" nogil:
    bint gr_torn(const gr_ring *, uint32_t, uint32_t, uint64_t, uint64_t)

cdef extern from "core/reap.h" nogil:
    gr_result gr_reap_dead(gr_ring *, uint64_t *)

cdef extern from "core/subscriptions.h" nogil:
    enum gr_start:
        GR_START_NEXT, GR_START_OLDEST, GR_START_AT
    struct gr_terms:
        unsigned mode, policy
        gr_start start_from "from"
        uint64_t start, patience_ns, owed, earlier
    gr_result gr_subscribe(gr_ring *, const char *, const gr_terms *)
    gr_result gr_unsubscribe(gr_ring *, const char *, gr_bool *)
    gr_result gr_owed(gr_ring *, uint32_t, uint64_t *)

cdef extern from "core/earlier.h" nogil:
    gr_result gr_settle(gr_ring *, uint32_t, uint64_t, uint64_t)
    gr_result gr_settled(gr_ring *, uint32_t)
    uint64_t gr_being_settled(gr_ring *, uint32_t)

cdef extern from "core/members.h" nogil:
    gr_result gr_join_producer(gr_ring *, gr_peer *)
    gr_result gr_join_consumer(gr_ring *, const char *, unsigned, unsigned, gr_start, uint64_t, gr_peer *)
    void gr_set_label(const gr_peer *, const char *)
    gr_result gr_leave(gr_peer *)
    bint gr_leaves_late(const gr_peer *)
    bint gr_leave_late(gr_ring *)
    void gr_drop_all(gr_ring *)
    void gr_stop(gr_peer *, bint)
    gr_result gr_close(gr_ring *)

cdef extern from "core/watchdog.h" nogil:
    void gr_watch(gr_ring *)

cdef extern from "core/exchange_offer.h" nogil:
    gr_result gr_offer(gr_ring *, int)

cdef extern from "core/exchange_fetch.h" nogil:
    struct gr_asked:
        gr_who who
        gr_bool met, without
    struct gr_fetch:
        uint32_t n
        gr_asked asked[251]
    void gr_fetch_begin(gr_fetch *, gr_ring *)
    int gr_fetch_go_on(gr_fetch *, gr_ring *, int64_t)
    void gr_fetch_end(gr_fetch *)

cdef extern from "core/wait.h" nogil:
    enum: GR_MAX_WAITED
    gr_result gr_select(gr_peer **, uint32_t, int64_t, int64_t, gr_bool *)
    gr_result gr_spin_ready(gr_peer *, int64_t)
    void gr_set_spin(gr_peer *, int64_t)

cdef extern from "core/notify.h" nogil:
    struct gr_notifier
    gr_notifier *gr_notifier_open()
    gr_result gr_notifier_arm(gr_notifier *, const gr_peer *, bint)
    void gr_notifier_disarm(gr_notifier *)
    void gr_notifier_clear(gr_notifier *)
    void gr_notifier_raise(gr_notifier *)
    void gr_notifier_close(gr_notifier *)
    int gr_notifier_fd(const gr_notifier *)

cdef extern from "host/error.h" nogil:
    enum gpuring_status:
        GPURING_OK, GPURING_TIMEOUT, GPURING_FULL, GPURING_NOT_FOUND, GPURING_EXISTS, GPURING_INCOMPATIBLE
        GPURING_TOO_MANY_PEERS, GPURING_CLOSED, GPURING_END_OF_STREAM, GPURING_PEER_LOST
        GPURING_PRODUCER_DIED, GPURING_NOT_PERMITTED, GPURING_DEVICE, GPURING_INVALID, GPURING_SYSTEM
    enum gpuring_sync:
        GPURING_SYNC_AUTO, GPURING_SYNC_EVENT, GPURING_SYNC_TIMELINE
    enum gpuring_gate:
        GPURING_GATE_AUTO, GPURING_GATE_STREAM, GPURING_GATE_HOST
    struct gpuring_error:
        gpuring_status status
        int sys_errno
        char text[512]

cdef extern from "host/names.h" nogil:
    enum: GH_PATH
    bint gh_is_name(const char *, size_t)
    gpuring_status gh_check_name(const char *, size_t, gpuring_error *)
    void gh_header_path(const char *, char *)
    void gh_slots_path(const char *, const uint8_t *, char *)
    const char *GH_ELSEWHERE
    enum: GH_SUBSCRIPTION
    gpuring_status gh_check_subscription(const char *, size_t, gpuring_error *)
    gpuring_status gh_name_none(char *, gpuring_error *)
    gpuring_status gh_check_label(const char *, size_t, gpuring_error *)

cdef extern from "host/environment.h" nogil:
    gpuring_status gh_spin_ns(int64_t *, gpuring_error *)

cdef extern from "host/locks.h" nogil:
    int gh_lock(int, int)
    int gh_unlock(int, int)
    bint gh_name_is_locked(int)
    bint gh_is_in_use(int)

cdef extern from "host/named.h" nogil:
    enum: GH_WORDS
    struct gh_stat "stat":
        uint32_t st_uid
    struct gh_named:
        char path[256]
        int place
        gh_stat stat
    int gh_look(gh_named *, const char *)
    void gh_look_away(gh_named *)
    const char *gh_odd(const gh_named *, char *)
    bint gh_is_own(const gh_named *)
    const char *gh_owner(const gh_named *, char *)
    int gh_open(const gh_named *, int, gpuring_error *)

cdef extern from "host/room.h" nogil:
    gpuring_status gh_fail_for_room(gpuring_error *, const char *, int, const char *, uint64_t)

cdef extern from "host/slots.h" nogil:
    gpuring_status gh_open_slots(const char *, const uint8_t *, uint32_t, uint32_t, uint64_t, void **, int *, gpuring_error *)

cdef extern from "host/making.h" nogil:
    int gh_unnamed(uint32_t, gpuring_error *)
    int gh_give_name(int, const char *)
    gpuring_status gh_make_slots(const char *, const uint8_t *, uint32_t, uint32_t, uint64_t, void **, int *, gpuring_error *)
    int gh_remove_file(const char *, uint32_t)
    gpuring_status gh_remove_own(const char *, const uint8_t *, gr_ring *, gpuring_error *)
    bint gh_has_durable(const gr_ring *)

cdef extern from "host/beside.h" nogil:
    struct gh_beside_file:
        char path[256]
        bint goes, gone
    struct gh_beside:
        uint32_t n
        gh_beside_file *file
    bint gh_is_left(const char *)

cdef extern from "host/sockets.h" nogil:
    bint gh_tidy_sockets(const char *, bint)

cdef extern from "host/debts.h" nogil:
    bint gh_may_owe(const gr_ring *)
    void gh_settle(const char *, gr_ring *)
    gpuring_status gh_forget(const char *, gr_ring *, const char *, gpuring_error *)
    bint gh_is_kept_aside(const char *, const char *)

cdef extern from "host/leftovers.h" nogil:
    bint gh_is_kept(gr_ring *)
    gpuring_status gh_remove_left(const char *, gh_beside *, const uint8_t *, bint, gr_bool *, gpuring_error *)
    gpuring_status gh_remove_dead(const char *, const uint8_t *, gr_bool *, gpuring_error *)
    bint gh_goes_with_the_last(const char *, gr_ring *)

cdef extern from "host/replacing.h" nogil:
    enum gpuring_replace:
        GPURING_REPLACE_DEAD, GPURING_REPLACE_NONE, GPURING_REPLACE_ANY
    gpuring_status gh_make_way(const char *, gpuring_replace, gpuring_error *)

cdef extern from "host/taking.h" nogil:
    gpuring_status gh_take_name(const char *, int, gpuring_replace, gr_ring *, gpuring_error *)
    gpuring_status gh_remove_name(const char *, bint, gr_bool *, gpuring_error *)
    int gh_has_successor(const char *, const gr_ring *)

cdef extern from "host/opening.h" nogil:
    gpuring_status gh_find(const char *, gh_named *, gpuring_error *)
    gpuring_status gh_read_header(const char *, int, gr_ring **, gpuring_error *)
    gpuring_status gh_attach_header(const char *, int64_t, gr_ring **, gpuring_error *)
    gpuring_status gh_check_living(const char *, gr_ring *, gpuring_error *)

cdef extern from "host/arrivals.h" nogil:
    int64_t GH_LOOK_NS
    int gh_watch_names(const char *)
    void gh_drain_names(int)
    struct gh_pace:
        int64_t look_ns
    void gh_begin_pace(gh_pace *, bint)
    void gh_missed(gh_pace *, bint)
    int64_t gh_rest_ns(gh_pace *, bint, int64_t)

cdef extern from "host/spec.h" nogil:
    int GH_ALIGNMENT, GH_KEPT_FREE
    struct gh_field:
        const char *name
        const char *dtype
        uint64_t offset, nbytes
        uint32_t dimensions
        uint64_t shape[8]
    struct gh_spec:
        uint32_t fields
        gh_field *field
        uint64_t slot_nbytes, meta_nbytes
    gpuring_status gh_read_spec(const char *, size_t, gh_spec *, gpuring_error *)
    gpuring_status gh_check_sizes(const char *, const gr_ring *, uint64_t, uint64_t, gpuring_error *)
    void gh_free_spec(gh_spec *)

cdef extern from "host/text.h" nogil:
    struct gh_text:
        size_t nbytes
    gh_text gh_begin_text(char *, size_t)

cdef extern from "host/in_the_way.h" nogil:
    bint gh_claims_in_vain(const gr_peer *, int64_t *)
    bint gh_is_of_this_process(const gr_ring *, uint32_t)
    bint gh_is_stopped(const gr_ring *, uint32_t)
    struct gh_looks:
        gr_bool (*is_stopped)(void *, const gr_ring *, uint32_t) noexcept
        void *context
    void gh_add_in_the_way(gh_text *, const gr_ring *, const gr_culprit *, const gh_looks *) noexcept
    void gh_add_way_out(gh_text *, const gr_ring *, const gr_culprit *)

cdef extern from "host/diagnosis.h" nogil:
    enum gh_verb:
        GH_CLAIM, GH_ACQUIRE, GH_LATEST
    double GH_NO_TIMEOUT
    gpuring_status gh_add_refused(gh_text *, const char *, const gr_peer *, gr_result, gh_verb, double, const gh_looks *) noexcept
    gpuring_status gh_add_resting(gh_text *, const char *, const gr_ring *, gr_result, gh_verb, double)
    gpuring_status gh_add_cannot_join(gh_text *, const char *, const gr_ring *, gr_result, const char *)
    gpuring_status gh_add_unusable(gh_text *, const char *, gr_result)
    void gh_add_torn(gh_text *, const char *, uint64_t *, size_t, bint)

cdef extern from "device/driver.h" nogil:
    enum: CU_OK, CU_INVALID_CONTEXT, CU_NOT_SUPPORTED, CU_EVENT_NO_TIMING, CU_STREAM_NON_BLOCKING, CU_CAPTURE_RELAXED, CU_DEVICE_ORDINAL, CU_UNIFIED
    struct gd_rows:
        int kind
        uint64_t device
        size_t pitch
    struct gd_copy_2d:
        gd_rows source, to
        size_t width, rows
    struct gd_driver:
        int (*init)(unsigned) noexcept nogil
        int (*device_get_attribute)(int *, int, int)
        int (*primary_retain)(void **, int) noexcept nogil
        int (*ctx_get_device)(int *) noexcept nogil
        int (*ctx_set_current)(void *) noexcept nogil
        int (*ctx_push)(void *) noexcept nogil
        int (*ctx_pop)(void **) noexcept nogil
        int (*ctx_synchronize)() noexcept nogil
        int (*let_reach)(void *, unsigned) noexcept nogil
        int (*capture_mode)(int *) noexcept nogil
        int (*copy)(uint64_t, uint64_t, size_t, void *) noexcept nogil
        int (*copy_rows)(const gd_copy_2d *, void *) noexcept nogil
        int (*fill)(uint64_t, unsigned char, size_t, void *) noexcept nogil
        int (*pointer_get_attribute)(void *, int, uint64_t) noexcept nogil
        int (*host_alloc)(void **, size_t) noexcept nogil
        int (*host_free)(void *) noexcept nogil
        int (*stream_create)(void **, unsigned) noexcept nogil
        int (*stream_destroy)(void *) noexcept nogil
        int (*stream_synchronize)(void *) noexcept nogil
        int (*stream_wait_event)(void *, void *, unsigned) noexcept nogil
        int (*event_create)(void **, unsigned) noexcept nogil
        int (*event_destroy)(void *) noexcept nogil
        int (*event_record)(void *, void *) noexcept nogil
        int (*event_query)(void *) noexcept nogil
        int (*event_synchronize)(void *) noexcept nogil
    bint gd_driver_fill(gd_driver *, void *(*)(void *, const char *) noexcept, void *, const char **) noexcept
    gd_driver *gd_driver_load(const char **, gr_bool *)
    const char *gd_status_name(const gd_driver *, int)

cdef extern from "device/state.h" nogil:
    ctypedef size_t gd_stream
    enum: GD_WAIT, GD_AGAIN
    enum gd_where:
        pass
    struct gd_trouble:
        gd_where where
        int status
        gd_stream stream
        uint32_t peer, index
        uint64_t value
    struct gd_device:
        gd_driver *driver
        gr_ring *ring
        int ordinal
        void *context
    struct gd_use:
        uint64_t seq, lost, upstream, value, producer_id
        gr_bool open, redelivered
        uint32_t ndim, streams, producer
        uint64_t shape[8]
        gd_stream *stream
    struct gd_released:
        size_t n, reserved
    struct gd_peer:
        gr_peer core
        gd_device *device
        gd_use *use
        gr_bool gate_host
        gd_released released
    struct gd_call:
        int64_t deadline_ns
        uint32_t got, torns
        const uint32_t *indices
        uint64_t torn[128]
        gd_trouble trouble
    void gd_begin(gd_call *, gd_stream, int64_t, uint32_t, uint32_t *)

cdef extern from "device/stream.h" nogil:
    gr_result gd_check_stream(gd_device *, gd_stream, gd_trouble *)
    gr_result gd_follow(gd_device *, gd_stream, const gd_stream *, uint32_t, gd_trouble *)

cdef extern from "device/released.h" nogil:
    bint gd_is_torn(gd_peer *, uint32_t)
    bint gd_would_report(gd_peer *)
    bint gd_look_at_released(gd_peer *)
    size_t gd_take_torn(gd_peer *, uint64_t *, size_t)

cdef extern from "device/device.h" nogil:
    gr_result gd_open(gd_device *, gd_driver *, gr_ring *, int, gd_trouble *)
    bint gd_close(gd_device *)
    gr_result gd_prepare(gd_peer *, gd_device *, bint, gd_trouble *)
    void gd_dispose(gd_peer *)

cdef extern from "device/order.h" nogil:
    bint gd_is_whole(gd_peer *)

cdef extern from "device/record.h" nogil:
    gr_result gd_settle(gd_peer *, gd_call *, uint32_t)
    gr_result gd_use_on(gd_peer *, uint32_t, gd_stream, gd_trouble *)
    void gd_leave_thread(gd_use *)

cdef extern from "device/verbs.h" nogil:
    gr_result gd_claim(gd_peer *, gd_call *, unsigned)
    gr_result gd_acquire(gd_peer *, gd_call *, unsigned, gr_verb)
    void gd_cancel(gd_peer *, gd_call *)
    gr_result gd_publish(gd_peer *, gd_call *, unsigned)
    gr_result gd_abandon(gd_peer *, gd_call *, unsigned)
    gr_result gd_release(gd_peer *, gd_call *, unsigned)
    gr_result gd_leave(gd_peer *, gd_call *, unsigned)
    gr_result gd_put_back(gd_peer *, uint32_t, bint)

cdef extern from "core/streamed.h" nogil:
    void gr_copy_streamed(void *to, const void *source, size_t nbytes)

cdef extern from "memory/gpu.h" nogil:
    enum: GM_WORDS
    struct gm_refusal:
        int status
    const char *gm_told(char *, const gd_driver *, const gm_refusal *)
    gpuring_status gm_fail_no_driver(const char *, gr_bool, gpuring_error *)
    gpuring_status gm_check_gpu(gd_driver *, int, gpuring_error *) noexcept
    int gm_gpu_of(gd_driver *, const uint8_t *) noexcept
    gpuring_status gm_uuid(gd_driver *, int, uint8_t *, gpuring_error *) noexcept
    gpuring_status gm_owner_of(gd_driver *, int, const uint8_t *, const char *, int *, gpuring_error *) noexcept
    gr_bool gm_enter(gd_driver *, int, gm_refusal *)
    void gm_leave(gd_driver *)

cdef extern from "memory/choice.h" nogil:
    const char *gm_lacks(gd_driver *, gr_memory, int, const char *, char *) noexcept
    const char *gm_lacks_timeline(gd_driver *, int, char *) noexcept
    gr_memory gm_auto(gr_bool, const char *, const char *, char *)
    gr_bool gm_is_contained()
    gpuring_status gm_order(gpuring_sync, gpuring_gate, const char *, gr_sync *, gr_gate *, gpuring_error *)

cdef extern from "memory/share.h" nogil:
    enum: GM_HANDLE
    uint64_t gm_rounded(uint64_t, uint64_t)
    gr_bool gm_register(gd_driver *, void *, size_t, uint64_t *, gm_refusal *)
    gr_bool gm_unregister(gd_driver *, void *, gm_refusal *)

cdef extern from "memory/slab.h" nogil:
    struct gm_slab:
        gr_memory kind
        int device, fd
        uint8_t handle[64]
        gr_bool made, borrowed
        gm_slab *of
    struct gm_wanted:
        const char *ring
        gr_memory kind
        const uint8_t *epoch
        const uint8_t *uuid
        const uint8_t *handle
        uint32_t slots
        uint64_t slot_nbytes
    gpuring_status gm_make(gd_driver *, gr_memory, int, const uint8_t *, uint64_t, gm_slab **, gpuring_error *)
    gpuring_status gm_open(gd_driver *, int, const gm_wanted *, int, gm_slab **, gpuring_error *)
    gpuring_status gm_view(gm_slab *, gr_bool, uint64_t *, gpuring_error *)
    void gm_put(gm_slab *)

cdef extern from "memory/given.h" nogil:
    struct gm_given:
        uint64_t ptr, nbytes
        int device
        const char *ring
        uint32_t slots
        uint64_t slot_nbytes
    gpuring_status gm_adopt(gd_driver *, const gm_given *, const uint8_t *, gm_slab **, gpuring_error *)

cdef extern from "memory/trouble.h" nogil:
    gpuring_status gm_fail_trouble(gpuring_error *, const gd_device *, const gd_trouble *) noexcept

cdef extern from "memory/fetch.h" nogil:
    enum: GM_FETCH_S
    gpuring_status gm_check_creator(const char *, gr_ring *, gpuring_error *)
    gpuring_status gm_fail_fetch(gpuring_error *, const gr_fetch *, gr_bool, double) noexcept
