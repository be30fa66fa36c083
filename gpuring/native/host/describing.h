/* What a slot is to hold: JSON, written. spec.h reads it. */
#pragma once

#include "../../include/gpuring.h"
#include "text.h"

/* Writes a description of the fields, with their names, dtypes and shapes, as slot_layout.py does.
 * The caller checks that each field has a name and a dtype, which are UTF-8, and not too many
 * dimensions. It also checks that the text was not cut, and gh_read_spec checks everything else. */
void gh_describe(struct gh_text *json, const gpuring_field *fields, uint32_t n,
                 const gpuring_field *meta, uint32_t n_meta);

/* Field k of the caller's array. Its elements have the size that the caller was compiled with. */
const gpuring_field *gh_field_of(const gpuring_field *fields, uint32_t k);
