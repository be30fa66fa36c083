/* What a slot holds: JSON, read and checked.
 *
 * Whoever may write the header may write anything there. So every size is checked before it is
 * added or multiplied, and the structure of a dtype is not followed deeper than MAX_DEPTH. */
#include "spec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "text.h"

enum { MAX_DEPTH = 16, SHOWN = 128 /* of the name of a field */ };

/* ---- dtypes ---------------------------------------------------------------------------------- */

/* Types that NumPy does not have. slot_layout.py has the integers that hold their bits. */
static const struct {
    const char *name;
    uint64_t nbytes;
} extended[] = {{"bfloat16", 2}, {"float8_e4m3fn", 1}, {"float8_e5m2", 1}};

static bool is_one_of(uint64_t n, const char *numbers) {
    for (char *next; *numbers; numbers = next)
        if (strtoull(numbers, &next, 10) == n) return true;
    return false;
}

/* How many bytes an element of NumPy's dtype has, such as "<f4". */
static bool size_of(struct gh_json *json, const char *dtype, uint64_t *nbytes) {
    const char *at = dtype + (*dtype && strchr("<>|=", *dtype));
    const char kind = *at ? *at++ : 0;
    uint64_t n = 0;
    if (*at < '0' || *at > '9') return gh_wrong(json, "a dtype has no size");
    for (; *at >= '0' && *at <= '9'; at++) {
        if (n > GR_MAX_SLOT_NBYTES) return gh_wrong(json, "a dtype is too large");
        n = 10 * n + (uint64_t)(*at - '0');
    }
    const char *sizes = kind == 'b'                   ? "1"
                        : kind == 'i' || kind == 'u'  ? "1 2 4 8"
                        : kind == 'f'                 ? "2 4 8 12 16"
                        : kind == 'c'                 ? "8 16 24 32"
                        : kind == 'M' || kind == 'm'  ? "8"
                        : kind == 'S' || kind == 'U' || kind == 'V' ? ""
                                                      : NULL;
    if (!sizes || (*sizes && !is_one_of(n, sizes))) return gh_wrong(json, "there is no such dtype");
    if ((kind == 'M' || kind == 'm') && *at == '[' && at[strlen(at) - 1] == ']') at += strlen(at);
    if (*at) return gh_wrong(json, "there is no such dtype");
    *nbytes = kind == 'U' ? 4 * n : n;
    return true;
}

bool gh_order_of(const char *dtype, char *order) {
    struct gh_json json = {.why = NULL};
    uint64_t nbytes;
    *order = 0;
    for (size_t k = 0; k < sizeof extended / sizeof *extended; k++)
        if (strcmp(dtype, extended[k].name) == 0) return true;
    if (!size_of(&json, dtype, &nbytes)) return false;
    const char kind = strchr("<>|=", *dtype) ? dtype[1] : *dtype;
    if (nbytes == 1 || kind == 'S' || kind == 'V') *order = '|';
    else *order = *dtype == '>' ? '>' : '<';
    return true;
}

static bool times(struct gh_json *json, uint64_t *nbytes, uint64_t n) {
    if (__builtin_mul_overflow(*nbytes, n, nbytes) || *nbytes > GR_MAX_SLOT_NBYTES)
        return gh_wrong(json, "a slot has at most 1 TiB");
    return true;
}

/* What comes next is a list of extents. `field` gets them, unless it is NULL. */
static bool read_shape(struct gh_json *json, uint64_t least, uint64_t *nbytes,
                       struct gh_field *field) {
    uint64_t extent;
    uint32_t n = 0;
    if (!gh_expect(json, '[')) return false;
    for (; gh_more(json, ']', n == 0); n++) {
        if (!gh_number(json, UINT64_MAX, &extent)) return false;
        if (extent < least) return gh_wrong(json, "a shape has positive extents");
        if (!times(json, nbytes, extent)) return false;
        if (!field) continue;
        if (n == GPURING_MAX_DIMENSIONS) return gh_wrong(json, "an array has too many dimensions");
        field->shape[n] = extent;
    }
    if (field) field->dimensions = n;
    return !json->why;
}

struct reader {
    struct gh_json json;
    char *text; /* where the next name goes */
    struct gh_spec *spec;
    const char *field; /* the one that is being read; NULL: none that has a name */
    bool full;         /* there is no memory */
};

static struct gh_field *add(struct reader *reader, struct gh_field **list, uint32_t *n) {
    if ((*n & (*n - 1)) == 0) { /* a power of two: there is no room for another one */
        struct gh_field *more = realloc(*list, sizeof **list * (*n ? 2 * (size_t)*n : 1));
        reader->full |= !more;
        if (!more) return gh_wrong(&reader->json, "there is no memory left"), NULL;
        *list = more;
    }
    (*list)[*n] = (struct gh_field){0};
    return &(*list)[(*n)++];
}

static bool read_name(struct reader *reader, const char **name) {
    size_t nbytes;
    *name = reader->text;
    if (!gh_string(&reader->json, reader->text, &nbytes)) return false;
    reader->text += nbytes + 1;
    return true;
}

static bool is_new(const struct gh_field *list, uint32_t n, const char *name) {
    for (uint32_t k = 0; k < n; k++)
        if (strcmp(list[k].name, name) == 0) return false;
    return true;
}

static bool read_dtype(struct reader *reader, int depth, uint64_t *itemsize, const char **noted);

/* The name of a structure's field; its title, if it has one, is passed. */
static bool read_member_name(struct reader *reader, const char **name) {
    struct gh_json *json = &reader->json;
    char *kept = reader->text;
    if (!gh_take(json, '[')) return read_name(reader, name);
    if (!read_name(reader, name) || !gh_expect(json, ',')) return false;
    reader->text = kept;
    return read_name(reader, name) && gh_expect(json, ']');
}

/* [name, dtype] or [name, dtype, shape]. `meta`: it is noted, unless it is a gap. */
static bool read_member(struct reader *reader, int depth, bool meta, struct gh_field *field) {
    struct gh_json *json = &reader->json;
    struct gh_spec *spec = reader->spec;
    char *kept = reader->text;
    if (!gh_expect(json, '[') || !read_member_name(reader, &field->name) || !gh_expect(json, ','))
        return false;
    const bool noted = meta && *field->name;
    if (!noted) reader->text = kept;
    else {
        reader->field = field->name;
        if (!is_new(spec->meta, spec->meta_fields, field->name))
            return gh_wrong(json, "two fields have one name");
    }
    if (!read_dtype(reader, depth, &field->itemsize, noted ? &field->dtype : NULL)) return false;
    field->nbytes = field->itemsize;
    if (gh_take(json, ',') && !read_shape(json, 0, &field->nbytes, noted ? field : NULL))
        return false;
    if (!gh_expect(json, ']')) return false;
    struct gh_field *added = noted ? add(reader, &spec->meta, &spec->meta_fields) : NULL;
    if (added) *added = *field;
    if (noted) reader->field = NULL;
    return !json->why;
}

static bool read_structure(struct reader *reader, int depth, bool meta, uint64_t *itemsize) {
    struct gh_json *json = &reader->json;
    if (depth > MAX_DEPTH) return gh_wrong(json, "it is too deep");
    *itemsize = 0;
    if (!gh_expect(json, '[')) return false;
    for (bool first = true; gh_more(json, ']', first); first = false) {
        struct gh_field field = {.offset = *itemsize};
        if (!read_member(reader, depth + 1, meta, &field)) return false;
        *itemsize += field.nbytes;
        if (*itemsize > GR_MAX_SLOT_NBYTES) return gh_wrong(json, "a slot has at most 1 TiB");
    }
    return !json->why;
}

/* noted: gets the dtype, as a name or as JSON. NULL: it is not needed, because the dtype is inside
 * of another one. */
static bool read_dtype(struct reader *reader, int depth, uint64_t *itemsize, const char **noted) {
    struct gh_json *json = &reader->json;
    char *kept = reader->text;
    const char *name = kept;
    if (gh_peek(json) == '[') {
        const char *from = json->at;
        if (!read_structure(reader, depth, false, itemsize)) return false;
        const size_t n = noted ? (size_t)(json->at - from) : 0;
        memcpy(kept, from, n);
        kept[n] = 0;
        reader->text = kept + n + 1;
    } else {
        if (!read_name(reader, &name)) return false;
        bool known = false;
        for (size_t k = 0; depth == 0 && k < sizeof extended / sizeof *extended; k++)
            if (strcmp(name, extended[k].name) == 0)
                *itemsize = extended[k].nbytes, known = true;
        if (!known && !size_of(json, name, itemsize)) return false;
    }
    if (noted) *noted = kept;
    else reader->text = kept;
    return true;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t nbytes) {
    return (nbytes + GH_ALIGNMENT - 1) / GH_ALIGNMENT * GH_ALIGNMENT;
}

/* [name, shape, dtype] */
static bool read_field(struct reader *reader) {
    struct gh_json *json = &reader->json;
    struct gh_spec *spec = reader->spec;
    struct gh_field field = {.offset = spec->slot_nbytes, .nbytes = 1};
    if (!gh_expect(json, '[') || !read_name(reader, &field.name) || !gh_expect(json, ','))
        return false;
    if (!*field.name) return gh_wrong(json, "a field has no name");
    reader->field = field.name;
    if (!is_new(spec->field, spec->fields, field.name))
        return gh_wrong(json, "two fields have one name");
    if (!read_shape(json, 1, &field.nbytes, &field) || !gh_expect(json, ',') ||
        !read_dtype(reader, 0, &field.itemsize, &field.dtype) || !gh_expect(json, ']'))
        return false;
    if (!field.itemsize) return gh_wrong(json, "a dtype has no size");
    if (!times(json, &field.nbytes, field.itemsize)) return false;
    struct gh_field *added = add(reader, &spec->field, &spec->fields);
    if (!added) return false;
    *added = field;
    spec->slot_nbytes = aligned(field.offset + field.nbytes);
    if (spec->slot_nbytes > GR_MAX_SLOT_NBYTES) return gh_wrong(json, "a slot has at most 1 TiB");
    reader->field = NULL;
    return true;
}

static bool read_fields(struct reader *reader) {
    struct gh_json *json = &reader->json;
    if (!gh_expect(json, '[')) return false;
    for (bool first = true; gh_more(json, ']', first); first = false)
        if (!read_field(reader)) return false;
    return reader->spec->fields || gh_wrong(json, "a slot needs at least one field");
}

static bool read_null(struct gh_json *json) {
    if (json->end - json->at < 4 || memcmp(json->at, "null", 4) != 0) return false;
    json->at += 4;
    return true;
}

static bool read_meta(struct reader *reader) {
    struct gh_json *json = &reader->json;
    struct gh_spec *spec = reader->spec;
    if (gh_peek(json) == 'n') return read_null(json) || gh_wrong(json, "its JSON is not valid");
    if (!read_structure(reader, 0, true, &spec->meta_nbytes)) return false;
    if (!spec->meta_fields) return gh_wrong(json, "the metadata has no fields");
    return spec->meta_nbytes <= GR_MAX_META || gh_wrong(json, "metadata has at most 65536 bytes");
}

static bool read_canary(struct reader *reader) {
    uint64_t *nbytes = &reader->spec->canary_nbytes;
    if (!gh_number(&reader->json, GH_ALIGNMENT, nbytes)) return false;
    return *nbytes == 0 || *nbytes == GH_ALIGNMENT || gh_wrong(&reader->json, "a canary is odd");
}

/* What else a process that attaches has to know. This library reads only "lost", which a bridge
 * writes, and only if it is an integer. */
static bool read_about(struct reader *reader) {
    struct gh_json *json = &reader->json;
    struct gh_spec *spec = reader->spec;
    if (gh_peek(json) != '{') return gh_skip(json);
    gh_expect(json, '{');
    for (bool first = true; gh_more(json, '}', first); first = false) {
        const char *name, *at;
        char *kept = reader->text;
        if (!read_name(reader, &name) || !gh_expect(json, ':')) return false;
        const bool lost = strcmp(name, "lost") == 0;
        reader->text = kept;
        gh_peek(json);
        at = json->at;
        if (!gh_skip(json)) return false;
        if (!lost) continue;
        char *end;
        spec->lost_before = strtoll(at, &end, 10);
        spec->is_bridged = end == json->at;
    }
    return !json->why;
}

static bool read_all(struct reader *reader) {
    static const struct {
        const char *key;
        bool (*read)(struct reader *);
    } parts[] = {
        {"fields", read_fields}, {"meta", read_meta}, {"canary", read_canary}, {"about", read_about}};
    struct gh_json *json = &reader->json;
    unsigned seen = 0;
    if (!gh_expect(json, '{')) return false;
    for (bool first = true; gh_more(json, '}', first); first = false) {
        const char *key;
        char *kept = reader->text;
        if (!read_name(reader, &key) || !gh_expect(json, ':')) return false;
        unsigned k = 0;
        while (k < 4 && strcmp(key, parts[k].key) != 0) k++;
        reader->text = kept;
        if (k == 4 ? !gh_skip(json) : seen >> k & 1 || !parts[k].read(reader))
            return gh_wrong(json, "it says something twice");
        seen |= 1u << k;
    }
    if (json->why) return false;
    if (gh_peek(json)) return gh_wrong(json, "there is more behind its end");
    return (seen & 3) == 3 || gh_wrong(json, "it lacks its fields or its metadata");
}

gpuring_status gh_read_spec(const char *json, size_t nbytes, struct gh_spec *spec,
                            gpuring_error *error) {
    *spec = (struct gh_spec){.text = malloc(2 * (nbytes + 1))};
    if (!spec->text) return gh_fail_system(error, ENOMEM, "the description of slots");
    /* A copy is read, because whoever may write the header may do so meanwhile. */
    char *copy = spec->text + nbytes + 1;
    memcpy(copy, json, nbytes);
    copy[nbytes] = 0;
    struct reader reader = {
        .json = {copy, copy, copy + nbytes, NULL}, .text = spec->text, .spec = spec};
    bool read = read_all(&reader);
    if (read) {
        spec->slot_nbytes += spec->canary_nbytes;
        read = spec->slot_nbytes <= GR_MAX_SLOT_NBYTES;
        if (!read) gh_wrong(&reader.json, "a slot has at most 1 TiB");
    }
    if (read) return GPURING_OK;
    char where[SHOWN] = "";
    if (reader.field) gh_printable(where, sizeof where, reader.field, strlen(reader.field));
    gh_free_spec(spec);
    if (reader.full) return gh_fail_system(error, ENOMEM, "the description of slots");
    if (*where)
        return gh_fail(error, GPURING_INCOMPATIBLE, "field '%s': %s", where, reader.json.why);
    return gh_fail(error, GPURING_INCOMPATIBLE, "%s (byte %zu of its description)", reader.json.why,
                   (size_t)(reader.json.at - reader.json.begin));
}

gpuring_status gh_check_sizes(const char *name, const struct gr_ring *ring, uint64_t slot_nbytes,
                              uint64_t meta_nbytes, gpuring_error *error) {
    const struct gr_config *config = &ring->config;
    if (slot_nbytes == config->slot_nbytes && meta_nbytes == config->meta_nbytes)
        return GPURING_OK;
    return gh_fail(error, GPURING_INCOMPATIBLE,
                   "ring '%s': its slots have %llu + %llu bytes, its description needs %llu + %llu",
                   name, (unsigned long long)config->slot_nbytes,
                   (unsigned long long)config->meta_nbytes, (unsigned long long)slot_nbytes,
                   (unsigned long long)meta_nbytes);
}

gpuring_status gh_open_spec(const char *name, const struct gr_ring *ring, struct gh_spec *spec,
                            gpuring_error *error) {
    gpuring_status status =
        gh_read_spec((const char *)ring->spec, ring->config.spec_nbytes, spec, error);
    if (status == GPURING_INCOMPATIBLE)
        return gh_fail(error, status,
                       "ring '%s': the description of its slots cannot be read: %s", name,
                       error->text);
    if (status != GPURING_OK) return status;
    status = gh_check_sizes(name, ring, spec->slot_nbytes, spec->meta_nbytes, error);
    if (status != GPURING_OK) gh_free_spec(spec);
    return status;
}

void gh_free_spec(struct gh_spec *spec) {
    free(spec->field);
    free(spec->meta);
    free(spec->text);
    *spec = (struct gh_spec){0};
}
