/* What a slot is to hold: JSON, written. */
#include "describing.h"

#include <string.h>

#include "json.h"
#include "spec.h"

/* order: what stands before it, or 0. */
static bool add_ordered(struct gh_text *json, char order, const char *string) {
    if (!gh_is_utf8(string, strlen(string))) return false;
    gh_add(json, "\"");
    if (order) gh_add(json, "%c", order);
    for (; *string; string++) {
        if (*string == '"' || *string == '\\') gh_add(json, "\\%c", *string);
        else if ((unsigned char)*string < 0x20) gh_add(json, "\\u%04x", (unsigned)*string);
        else gh_add(json, "%c", *string);
    }
    gh_add(json, "\"");
    return true;
}

static bool add_string(struct gh_text *json, const char *string) {
    return add_ordered(json, 0, string);
}

static void add_shape(struct gh_text *json, const gpuring_field *field) {
    gh_add(json, "[");
    for (uint32_t k = 0; k < field->dimensions; k++)
        gh_add(json, k ? ", %llu" : "%llu", (unsigned long long)field->shape[k]);
    gh_add(json, "]");
}

static bool add_dtype(struct gh_text *json, const char *dtype) {
    char order;
    if (*dtype == '[') {
        gh_add(json, "%s", dtype); /* the JSON of a structure */
        return gh_is_utf8(dtype, strlen(dtype));
    }
    if (!gh_order_of(dtype, &order) || !order) return add_string(json, dtype);
    return add_ordered(json, order, dtype + (strchr("<>|=", *dtype) != NULL));
}

const gpuring_field *gh_field_of(const gpuring_field *fields, uint32_t k) {
    return (const gpuring_field *)((const char *)fields + k * fields[0].size);
}

/* A field of a slot has its shape before its dtype. One of the metadata has it behind, if any. */
static bool add_field(struct gh_text *json, const gpuring_field *field, bool meta) {
    if (!field->name || !field->dtype || field->dimensions > GPURING_MAX_DIMENSIONS) return false;
    gh_add(json, "[");
    if (!add_string(json, field->name)) return false;
    gh_add(json, ", ");
    if (!meta) {
        add_shape(json, field);
        gh_add(json, ", ");
    }
    if (!add_dtype(json, field->dtype)) return false;
    if (meta && field->dimensions) {
        gh_add(json, ", ");
        add_shape(json, field);
    }
    gh_add(json, "]");
    return true;
}

bool gh_describe(struct gh_text *json, const gpuring_field *fields, uint32_t n,
                 const gpuring_field *meta, uint32_t n_meta) {
    gh_add(json, "{\"fields\": [");
    for (uint32_t k = 0; k < n; k++) {
        if (k) gh_add(json, ", ");
        if (!add_field(json, gh_field_of(fields, k), false)) return false;
    }
    gh_add(json, n_meta ? "], \"meta\": [" : "], \"meta\": null");
    for (uint32_t k = 0; k < n_meta; k++) {
        if (k) gh_add(json, ", ");
        if (!add_field(json, gh_field_of(meta, k), true)) return false;
    }
    gh_add(json, n_meta ? "], \"canary\": 0}" : ", \"canary\": 0}");
    return true;
}
