/* What a slot is to hold: JSON, written. spec.h reads it. */
#pragma once

#include "../../include/gpuring.h"
#include "text.h"

/* Writes a description, as slot_layout.py does: of fields, their names, dtypes and shapes. A text
 * that is cut is no description; gh_read_spec checks the rest. false: a field has no name or dtype in
 * UTF-8, or too many dimensions. */
bool gh_describe(struct gh_text *json, const gpuring_field *fields, uint32_t n,
                 const gpuring_field *meta, uint32_t n_meta);

/* A field of an array, whose elements have the caller's size. */
const gpuring_field *gh_field_of(const gpuring_field *fields, uint32_t k);
