/* What a slot holds: named arrays at offsets, and the frame's metadata.
 *
 * The header has it as JSON, which slot_layout.py writes: {"fields": [[name, shape, dtype], …],
 * "meta": dtype or null, "canary": …}. The offsets follow from that, and are found here. A dtype is
 * a string of NumPy, or a structure: [[name or [title, name], dtype, shape], …], with a field "" for
 * each gap.
 */
#pragma once

#include <stdbool.h>

#include "../core/ring.h"
#include "error.h"

enum { GH_KEPT_FREE = 2048 }; /* bytes of a description that an importer of a bridge may add */
enum { GH_ALIGNMENT = 256 }; /* of slots, and of the fields in them, as CUDA's allocations have it */

struct gh_field {
    const char *name, *dtype; /* dtype: a name, or the JSON of a structure */
    uint64_t offset, itemsize, nbytes;
    uint32_t dimensions;
    uint64_t shape[GPURING_MAX_DIMENSIONS];
};

struct gh_spec {
    uint32_t fields, meta_fields;
    struct gh_field *field, *meta; /* meta: without gaps */
    uint64_t slot_nbytes, meta_nbytes, canary_nbytes;
    bool is_bridged; /* a bridge fills the ring, and had lost so many frames when it was made */
    int64_t lost_before;
    char *text; /* of names and dtypes */
};

/* With which of '<', '>' and '|' NumPy writes this dtype, whether it is given with one or not; 0 if NumPy
 * does not have it ("bfloat16"). false: there is no such dtype. */
bool gh_order_of(const char *dtype, char *order);

/* GPURING_OK, GPURING_INCOMPATIBLE, or GPURING_SYSTEM: no memory. Otherwise gh_free_spec frees it. */
gpuring_status gh_read_spec(const char *json, size_t nbytes, struct gh_spec *spec,
                            gpuring_error *error);
/* Reads the description of an attached ring, and checks that it agrees with the ring's header. */
gpuring_status gh_open_spec(const char *name, const struct gr_ring *ring, struct gh_spec *spec,
                            gpuring_error *error);
/* GPURING_INCOMPATIBLE if the slots have other sizes. */
gpuring_status gh_check_sizes(const char *name, const struct gr_ring *ring, uint64_t slot_nbytes,
                              uint64_t meta_nbytes, gpuring_error *error);
void gh_free_spec(struct gh_spec *spec);
