/* A reader of the JSON that describes slots. It reads what its caller asks for, and nothing else.
 *
 * It never goes back, except to a place that its caller has kept. After the first mistake in the text
 * each call returns false. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gh_json {
    const char *begin, *at, *end;
    const char *why; /* NULL: nothing is wrong yet */
};

/* Says what is wrong, if nothing was yet. Returns false. */
bool gh_wrong(struct gh_json *json, const char *why);
/* Whether this character comes next, after space. If so it is passed. */
bool gh_take(struct gh_json *json, char c);
/* The same for what must come. */
bool gh_expect(struct gh_json *json, char c);
/* What comes next, after space. 0: nothing. */
char gh_peek(struct gh_json *json);
/* A string, decoded, with a zero behind it. `to` has room for as many bytes as the string has
 * here with its quotes. Half of a surrogate pair is written as Python's "surrogatepass" does. */
bool gh_string(struct gh_json *json, char *to, size_t *nbytes);
/* An integer from 0 to `most`. */
bool gh_number(struct gh_json *json, uint64_t most, uint64_t *value);
/* Passes a value, whatever it is. */
bool gh_skip(struct gh_json *json);
/* Whether another element comes in a list or object that ends with `close`. first: none was taken
 * yet. */
bool gh_more(struct gh_json *json, char close, bool first);
