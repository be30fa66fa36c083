/* gpuring for C++17: gpuring.h with RAII, exceptions and spans. Header-only.
 *
 *     gpuring::Ring ring("cam0", gpuring::seconds(10));
 *     gpuring::Consumer frames(ring);
 *     while (auto frame = frames.next()) {
 *         const auto pixels = frame->array<std::uint8_t>();
 *     }
 *
 * What gpuring.h says about threads, forks and signals holds here, too. A function that has no
 * comment does what the function of gpuring.h with that name does.
 */
#pragma once

#if __cplusplus < 201703L
#error "gpuring.hpp needs C++17: pass -std=c++17 or a later one"
#endif
#ifndef __cpp_exceptions
#error "gpuring.hpp reports errors by exceptions: without them include gpuring.h, whose calls return a status"
#endif

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if __cplusplus >= 202002L
#include <span>
#include <version>
#endif

#include "gpuring.h"

namespace gpuring {

/* A call of gpuring.h has failed. */
class Error : public std::runtime_error {
public:
    explicit Error(const gpuring_error &error) : std::runtime_error(error.text), error_(error) {}
    gpuring_status status() const noexcept { return error_.status; }
    int sys_errno() const noexcept { return error_.sys_errno; }
    int device_status() const noexcept { return error_.device_status; }

private:
    gpuring_error error_;
};

/* A timeout. std::nullopt waits for ever. 0 or a negative timeout does not wait. If it is left out,
 * verbs wait for ever, and an attach does not wait, as in Python. */
using Timeout = std::optional<std::chrono::nanoseconds>;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace detail {
inline std::int64_t ns(const Timeout &timeout) {
    if (!timeout) return GPURING_FOREVER;
    return timeout->count() < 0 ? 0 : timeout->count();
}
inline gpuring_attach_options wait_for(const Timeout &timeout) {
    gpuring_attach_options options = GPURING_ATTACH_OPTIONS;
    options.timeout_ns = ns(timeout);
    return options;
}
inline void check(gpuring_status status, const gpuring_error &error) {
    if (status != GPURING_OK) throw Error(error);
}
/* A name for C, where it would end at a zero byte. */
inline const char *c_str(const std::string &name) {
    if (name.find('\0') != name.npos)
        throw Error({GPURING_INVALID, 0, 0, "a name has a zero byte, and no name may have one"});
    return name.c_str();
}
inline bool came(gpuring_status status, const gpuring_error &error) {
    if (status == GPURING_TIMEOUT || status == GPURING_FULL) return false;
    check(status, error);
    return true;
}
} // namespace detail

/* Contiguous elements in memory that something else owns, as std::span of C++20. */
template <class T> class Span {
public:
    Span() = default;
    Span(T *data, std::size_t size) : data_(data), size_(size) {}
    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t k) const noexcept { return data_[k]; }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/* A ring. It stays attached until the last copy of this object is destroyed. */
class Ring {
public:
    /* Attaches. Without a timeout it does not wait for the ring. */
    explicit Ring(const std::string &name, const Timeout &timeout = std::chrono::nanoseconds(0))
        : Ring(name, detail::wait_for(timeout)) {}
    Ring(const std::string &name, const gpuring_attach_options &options) {
        gpuring_error error;
        gpuring_ring *ring = nullptr;
        detail::check(gpuring_attach(detail::c_str(name), &options, &ring, &error), error);
        keep(ring);
    }

    /* Creates a ring. It is closed for all when the last copy of this object is destroyed. */
    static Ring create(const std::string &name, const gpuring_create_options &options) {
        gpuring_error error;
        gpuring_ring *ring = nullptr;
        detail::check(gpuring_create(detail::c_str(name), &options, &ring, &error), error);
        return Ring(ring);
    }

    /* Removes the name of a ring. Its peers go on. */
    static void unlink(const std::string &name) {
        gpuring_error error;
        detail::check(gpuring_unlink(detail::c_str(name), &error), error);
    }
    /* A ring that a function of gpuring.h has returned. Others may detach it; this object keeps
     * it. */
    static Ring of(gpuring_ring *ring) { return Ring(gpuring_retain(ring)); }

    /* Makes a durable subscription. */
    void subscribe(const std::string &subscription,
                   const gpuring_subscribe_options &options = GPURING_SUBSCRIBE_OPTIONS) {
        gpuring_error error;
        detail::check(gpuring_subscribe(get(), detail::c_str(subscription), &options, &error), error);
    }
    /* Ends a durable subscription. Returns whether there was one of this name. */
    bool unsubscribe(const std::string &subscription) {
        gpuring_error error;
        bool found = false;
        detail::check(gpuring_unsubscribe(get(), detail::c_str(subscription), &found, &error), error);
        return found;
    }

    gpuring_info info() const {
        gpuring_info info = GPURING_INFO;
        const gpuring_status status = gpuring_get_info(get(), &info);
        if (status != GPURING_OK)
            throw Error({status, 0, 0, "there is no ring: it was moved from, or is a parent's"});
        return info;
    }
    /* A field of the slots; meta() is one of the metadata. Throws std::out_of_range if there is
     * none. */
    gpuring_field field(const std::string &name = "array") const {
        gpuring_field field = GPURING_FIELD;
        if (gpuring_field_named(get(), detail::c_str(name), &field) != GPURING_OK)
            throw std::out_of_range(missing("the slots have no field", name));
        return field;
    }
    gpuring_field meta(const std::string &name) const {
        gpuring_field field = GPURING_FIELD;
        if (gpuring_meta_named(get(), detail::c_str(name), &field) != GPURING_OK)
            throw std::out_of_range(missing("the metadata has no field", name));
        return field;
    }
    gpuring_ring *get() const noexcept { return ring_.get(); }

private:
    explicit Ring(gpuring_ring *ring) { keep(ring); }
    std::string missing(const char *what, const std::string &name) const {
        return std::string("ring '") + info().name + "': " + what + " '" + name + "'";
    }
    void keep(gpuring_ring *ring) {
        ring_.reset(ring, [](gpuring_ring *each) { gpuring_detach(each, nullptr); });
    }
    std::shared_ptr<gpuring_ring> ring_; /* its producers and consumers have copies */
};

namespace detail {

template <class Each, class Peer> class Batch;

/* A slot of a peer. Byte is const for a consumer, which may only read. */
template <class Peer, class Byte> class Slot {
public:
    std::uint64_t seq() const noexcept { return slot_.seq; }
    const gpuring_slot &raw() const noexcept { return slot_; }
    bool restarted() const noexcept { return slot_.restarted; }
    Byte *data() const noexcept { return static_cast<Byte *>(slot_.data); }
    /* The same bytes for the CPU; NULL if only a GPU can reach them. */
    Byte *host() const noexcept { return static_cast<Byte *>(slot_.host); }
    bool mapped() const noexcept { return slot_.mapped; }
    /* The shape of the frame. A frame that fills the slot has that of the field. */
    std::vector<std::uint64_t> shape(const std::string &name = "array") const {
        check_open();
        if (slot_.dimensions) return {slot_.shape, slot_.shape + slot_.dimensions};
        const gpuring_field field = ring_.field(name);
        return {field.shape, field.shape + field.dimensions};
    }

    /* The elements of a field, as type T. They lie where data() points: on a GPU only kernels may
     * use them. Throws std::invalid_argument if T has another size than the elements. */
    template <class T> auto array(const std::string &name = "array") const {
        check_open();
        const gpuring_field field = ring_.field(name);
        if (field.itemsize != sizeof(T))
            throw std::invalid_argument(differs("an element of '", field, field.itemsize, sizeof(T)));
        using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
        std::size_t n = field.nbytes / sizeof(T);
        if (slot_.dimensions) {
            n = 1;
            for (std::uint32_t k = 0; k < slot_.dimensions; k++) n *= slot_.shape[k];
        }
        return Span<Element>(reinterpret_cast<Element *>(data() + field.offset), n);
    }
    /* The address of a field of the metadata. It may be unaligned, so use memcpy. */
    Byte *meta(const gpuring_field &field) const noexcept {
        return static_cast<Byte *>(slot_.meta) + field.offset;
    }
    template <class T> T meta(const std::string &name) const {
        const gpuring_field field = checked<T>(name);
        T value;
        std::memcpy(&value, meta(field), sizeof value);
        return value;
    }

protected:
    Slot(Ring ring, std::shared_ptr<Peer> peer, const gpuring_slot &slot)
        : ring_(std::move(ring)), slot_(slot), peer_(std::move(peer)) {}
    std::string differs(const char *what, const gpuring_field &field, std::uint64_t nbytes,
                        std::size_t asked) const {
        return std::string("ring '") + ring_.info().name + "': " + what + field.name + "' has " +
               std::to_string(nbytes) + " bytes (" + field.dtype + "), and the type in C++ has " +
               std::to_string(asked);
    }
    void check_open() const {
        if (!peer_) throw Error({GPURING_INVALID, 0, 0, "the slot was ended before"});
    }
    template <class T> gpuring_field checked(const std::string &name) const {
        static_assert(std::is_trivially_copyable_v<T>);
        check_open();
        const gpuring_field field = ring_.meta(name);
        if (field.nbytes != sizeof(T))
            throw std::invalid_argument(differs("the metadata '", field, field.nbytes, sizeof(T)));
        return field;
    }
    template <class, class> friend class Batch;
    Ring ring_;
    gpuring_slot slot_;
    std::shared_ptr<Peer> peer_; /* NULL when the slot has ended */
};

} // namespace detail

/* A slot to be written. Its destructor abandons it unless it was published. Once it is published,
 * array(), set_meta() and other functions throw GPURING_INVALID, and pointers into it must not be
 * used. */
class WriteSlot : public detail::Slot<gpuring_producer, unsigned char> {
public:
    WriteSlot(Ring ring, std::shared_ptr<gpuring_producer> producer, const gpuring_slot &slot)
        : Slot(std::move(ring), std::move(producer), slot) {}
    WriteSlot(WriteSlot &&) noexcept = default;
    /* The slot that it was is abandoned. */
    WriteSlot &operator=(WriteSlot &&other) noexcept {
        const WriteSlot before(std::move(*this));
        Slot::operator=(std::move(other));
        return *this;
    }
    ~WriteSlot() {
        if (peer_) gpuring_abandon(peer_.get(), &slot_, nullptr);
    }

    template <class T> void set_meta(const std::string &name, const T &value) {
        std::memcpy(meta(checked<T>(name)), &value, sizeof value);
    }
    void set_shape(const std::vector<std::uint64_t> &shape) {
        gpuring_error error;
        const auto n = static_cast<std::uint32_t>(shape.size());
        detail::check(gpuring_set_shape(peer_.get(), &slot_, n, shape.data(), &error), error);
    }
    void use_on(void *stream) {
        gpuring_error error;
        detail::check(gpuring_producer_use_on(peer_.get(), &slot_, stream, &error), error);
    }
    void publish() {
        gpuring_error error;
        const auto producer = std::move(peer_);
        detail::check(gpuring_publish(producer.get(), &slot_, &error), error);
    }
};

/* A frame to be read. Its destructor releases it unless release() has done so. Once it is released,
 * array(), meta<T>() and other functions throw GPURING_INVALID, and pointers into it must not be
 * used. */
class ReadSlot : public detail::Slot<gpuring_consumer, const unsigned char> {
public:
    ReadSlot(Ring ring, std::shared_ptr<gpuring_consumer> consumer, const gpuring_slot &slot)
        : Slot(std::move(ring), std::move(consumer), slot) {}
    ReadSlot(ReadSlot &&) noexcept = default;
    /* The frame that it was is released. */
    ReadSlot &operator=(ReadSlot &&other) noexcept {
        const ReadSlot before(std::move(*this));
        Slot::operator=(std::move(other));
        return *this;
    }
    ~ReadSlot() {
        if (peer_) gpuring_release(peer_.get(), &slot_, nullptr);
    }

    std::uint64_t lost() const noexcept { return slot_.lost; }
    void use_on(void *stream) {
        gpuring_error error;
        detail::check(gpuring_consumer_use_on(peer_.get(), &slot_, stream, &error), error);
    }
    /* Throws if the frame is known to be torn. */
    void release() {
        gpuring_error error;
        const auto consumer = std::move(peer_);
        detail::check(gpuring_release(consumer.get(), &slot_, &error), error);
    }
};

namespace detail {

/* Slots that one call has taken, in order of their sequences. */
template <class Each, class Peer> class Batch {
public:
    Batch(const Ring &ring, const std::shared_ptr<Peer> &peer, std::vector<gpuring_slot> taken)
        : raw_(std::move(taken)) {
        slots_.reserve(raw_.size());
        for (const gpuring_slot &slot : raw_) slots_.emplace_back(ring, peer, slot);
    }
    std::size_t size() const noexcept { return slots_.size(); }
    auto begin() noexcept { return slots_.begin(); }
    auto end() noexcept { return slots_.end(); }
    Each &operator[](std::size_t k) noexcept { return slots_[k]; }

protected:
    /* Ends the slots that are still open, by one call. */
    template <class Verb> gpuring_status end_all(Verb verb, gpuring_error *error) noexcept {
        std::shared_ptr<Peer> peer;
        std::uint32_t open = 0;
        for (Each &slot : slots_) {
            if (!slot.peer_) continue;
            peer = std::move(slot.peer_);
            raw_[open++] = slot.slot_;
        }
        return open ? verb(peer.get(), raw_.data(), open, error) : GPURING_OK;
    }

private:
    std::vector<gpuring_slot> raw_;
    std::vector<Each> slots_;
};

/* Takes up to `wanted` slots by a verb of gpuring.h. None: nothing came in time. */
template <class Verb, class Peer>
std::vector<gpuring_slot> many(Verb verb, Peer *peer, std::uint32_t wanted, const Timeout &timeout) {
    gpuring_error error;
    gpuring_slot slot = GPURING_SLOT;
    std::vector<gpuring_slot> slots(wanted < 1024 ? wanted : 1024, slot); /* a ring has no more */
    std::uint32_t got = 0;
    const auto n = static_cast<std::uint32_t>(slots.size());
    came(verb(peer, ns(timeout), slots.data(), n, &got, &error), error);
    slots.resize(got);
    return slots;
}

} // namespace detail

/* Slots to be written. Those that are neither published nor moved out of it when it goes are
 * abandoned. */
class WriteBatch : public detail::Batch<WriteSlot, gpuring_producer> {
public:
    using Batch::Batch;
    /* Publishes the slots that are still open. If one cannot be published, those behind it are
     * abandoned, and this throws. */
    void publish() {
        gpuring_error error;
        detail::check(end_all(gpuring_publish_many, &error), error);
    }
};

/* Frames to be read. Those that are neither released nor moved out of it when it goes are
 * released. */
class ReadBatch : public detail::Batch<ReadSlot, gpuring_consumer> {
public:
    using Batch::Batch;
    ReadBatch(ReadBatch &&) noexcept = default;
    /* The frames that it had are released. */
    ReadBatch &operator=(ReadBatch &&) noexcept = default;
    ~ReadBatch() { end_all(gpuring_release_many, nullptr); }

    /* Releases the frames that are still open. Throws if some are known to be torn. */
    void release() {
        gpuring_error error;
        detail::check(end_all(gpuring_release_many, &error), error);
    }
};

class Producer {
public:
    explicit Producer(const Ring &ring, gpuring_producer_options options = GPURING_PRODUCER_OPTIONS)
        : ring_(ring) {
        gpuring_error error;
        gpuring_producer *producer = nullptr;
        detail::check(gpuring_join_producer(ring.get(), &options, &producer, &error), error);
        producer_.reset(producer, [ring](gpuring_producer *each) {
            gpuring_close_producer(each, nullptr);
        });
    }

    /* Sets the stream of all later calls. Use it as in producer.on(stream).claim(). */
    Producer &on(void *stream) {
        gpuring_producer_stream(get(), stream);
        return *this;
    }
    /* Waits for a slot. Returns nothing if none was free in time. */
    std::optional<WriteSlot> claim(const Timeout &timeout = {}) {
        gpuring_error error;
        gpuring_slot slot = GPURING_SLOT;
        if (!detail::came(gpuring_claim(get(), detail::ns(timeout), &slot, &error), error))
            return std::nullopt;
        return std::make_optional<WriteSlot>(ring(), producer_, slot);
    }
    /* Does not wait. If no slot is free, returns nothing and counts the frame as dropped. */
    std::optional<WriteSlot> try_claim() {
        gpuring_error error;
        gpuring_slot slot = GPURING_SLOT;
        if (!detail::came(gpuring_try_claim(get(), &slot, &error), error)) return std::nullopt;
        return std::make_optional<WriteSlot>(ring(), producer_, slot);
    }
    /* Waits for one slot, and takes up to `wanted` that are free. Returns nothing if none was free
     * in time. */
    std::optional<WriteBatch> claim_many(std::uint32_t wanted, const Timeout &timeout = {}) {
        auto slots = detail::many(gpuring_claim_many, get(), wanted, timeout);
        if (slots.empty()) return std::nullopt;
        return std::make_optional<WriteBatch>(ring(), producer_, std::move(slots));
    }
    int fd() {
        gpuring_error error;
        int fd = -1;
        detail::check(gpuring_producer_fd(get(), &fd, &error), error);
        return fd;
    }
    gpuring_producer *get() const noexcept { return producer_.get(); }
    /* The ring that it has joined. With `reattach` a restart may change it, and the first slot of
     * the new ring is restarted(). Copies of the earlier ring stay valid. */
    Ring ring() {
        gpuring_ring *now = gpuring_producer_ring(get());
        if (now != ring_.get()) ring_ = Ring::of(now);
        return ring_;
    }

private:
    Ring ring_;
    std::shared_ptr<gpuring_producer> producer_; /* its slots have copies */
};

class Consumer {
public:
    explicit Consumer(const Ring &ring, gpuring_consumer_options options = GPURING_CONSUMER_OPTIONS)
        : ring_(ring) {
        gpuring_error error;
        gpuring_consumer *consumer = nullptr;
        detail::check(gpuring_join_consumer(ring.get(), &options, &consumer, &error), error);
        consumer_.reset(consumer, [ring](gpuring_consumer *each) {
            gpuring_close_consumer(each, nullptr);
        });
    }

    Consumer &on(void *stream) {
        gpuring_consumer_stream(get(), stream);
        return *this;
    }
    /* Waits for the next frame; latest() waits for the newest. Returns nothing if none came in
     * time. Throws GPURING_END_OF_STREAM at the end of the stream. */
    std::optional<ReadSlot> acquire(const Timeout &timeout = {}) {
        return taken(gpuring_acquire, timeout);
    }
    std::optional<ReadSlot> latest(const Timeout &timeout = {}) {
        return taken(gpuring_latest, timeout);
    }
    /* Waits for one frame, and takes up to `wanted` that are there. Else as acquire(). */
    std::optional<ReadBatch> acquire_many(std::uint32_t wanted, const Timeout &timeout = {}) {
        auto slots = detail::many(gpuring_acquire_many, get(), wanted, timeout);
        if (slots.empty()) return std::nullopt;
        return std::make_optional<ReadBatch>(ring(), consumer_, std::move(slots));
    }
    /* Waits for the next frame without a timeout. Returns nothing at the end of the stream. */
    std::optional<ReadSlot> next() {
        try {
            return acquire();
        } catch (const Error &error) {
            if (error.status() == GPURING_END_OF_STREAM) return std::nullopt;
            throw;
        }
    }
    int fd() {
        gpuring_error error;
        int fd = -1;
        detail::check(gpuring_consumer_fd(get(), &fd, &error), error);
        return fd;
    }
    gpuring_consumer *get() const noexcept { return consumer_.get(); }
    /* As Producer::ring. */
    Ring ring() {
        gpuring_ring *now = gpuring_consumer_ring(get());
        if (now != ring_.get()) ring_ = Ring::of(now);
        return ring_;
    }

private:
    template <class Verb> std::optional<ReadSlot> taken(Verb verb, const Timeout &timeout) {
        gpuring_error error;
        gpuring_slot slot = GPURING_SLOT;
        if (!detail::came(verb(get(), detail::ns(timeout), &slot, &error), error))
            return std::nullopt;
        return std::make_optional<ReadSlot>(ring(), consumer_, slot);
    }
    Ring ring_;
    std::shared_ptr<gpuring_consumer> consumer_;
};

} // namespace gpuring

#ifdef __cpp_lib_ranges
/* A std::span can be made from what array() returns. */
template <class T>
inline constexpr bool std::ranges::enable_borrowed_range<gpuring::Span<T>> = true;
#endif
