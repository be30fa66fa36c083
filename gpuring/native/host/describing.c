/* What a slot is to hold: JSON, written. */
#include "describing.h"

#include <string.h>

#include "spec.h"

/* order: what stands before it, or 0. */
static void add_ordered(struct gh_text *json, char order, const char *string) {
    gh_add(json, "\"");
    if (order) gh_add(json, "%c", order);
    for (; *string; string++) {
        if (*string == '"' || *string == '\\') gh_add(json, "\\%c", *string);
        else if ((unsigned char)*string < 0x20) gh_add(json, "\\u%04x", (unsigned)*string);
        else gh_add(json, "%c", *string);
    }
    gh_add(json, "\"");
}

static void add_shape(struct gh_text *json, const gpuring_field *field) {
    gh_add(json, "[");
    for (uint32_t k = 0; k < field->dimensions; k++)
        gh_add(json, k ? ", %llu" : "%llu", (unsigned long long)field->shape[k]);
    gh_add(json, "]");
}

static void add_dtype(struct gh_text *json, const char *dtype) {
    char order;
    if (*dtype == '[') gh_add(json, "%s", dtype); /* the JSON of a structure */
    else if (!gh_order_of(dtype, &order) || !order) add_ordered(json, 0, dtype);
    else add_ordered(json, order, dtype + (strchr("<>|=", *dtype) != NULL));
}

const gpuring_field *gh_field_of(const gpuring_field *fields, uint32_t k) {
    return (const gpuring_field *)((const char *)fields + k * fields[0].size);
}

/* A field of a slot has its shape before its dtype. One of the metadata has it behind, if any. */
static void add_field(struct gh_text *json, const gpuring_field *field, bool meta) {
    gh_add(json, "[");
    add_ordered(json, 0, field->name);
    gh_add(json, ", ");
    if (!meta) {
        add_shape(json, field);
        gh_add(json, ", ");
    }
    add_dtype(json, field->dtype);
    if (meta && field->dimensions) {
        gh_add(json, ", ");
        add_shape(json, field);
    }
    gh_add(json, "]");
}

void gh_describe(struct gh_text *json, const gpuring_field *fields, uint32_t n,
                 const gpuring_field *meta, uint32_t n_meta) {
    gh_add(json, "{\"fields\": [");
    for (uint32_t k = 0; k < n; k++) {
        if (k) gh_add(json, ", ");
        add_field(json, gh_field_of(fields, k), false);
    }
    gh_add(json, n_meta ? "], \"meta\": [" : "], \"meta\": null");
    for (uint32_t k = 0; k < n_meta; k++) {
        if (k) gh_add(json, ", ");
        add_field(json, gh_field_of(meta, k), true);
    }
    gh_add(json, n_meta ? "], \"canary\": 0}" : ", \"canary\": 0}");
}
