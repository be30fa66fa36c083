/* A reader of the JSON that describes slots. */
#include "json.h"

#include <string.h>

enum { MAX_DEPTH = 64 };

bool gh_wrong(struct gh_json *json, const char *why) {
    if (!json->why) json->why = why;
    return false;
}

char gh_peek(struct gh_json *json) {
    while (json->at < json->end && strchr(" \t\r\n", *json->at) && *json->at) json->at++;
    return json->at < json->end && !json->why ? *json->at : 0;
}

bool gh_take(struct gh_json *json, char c) {
    if (gh_peek(json) != c) return false;
    json->at++;
    return true;
}

bool gh_expect(struct gh_json *json, char c) {
    return gh_take(json, c) || gh_wrong(json, "its JSON is not valid");
}

bool gh_more(struct gh_json *json, char close, bool first) {
    if (gh_take(json, close)) return false;
    return first ? !json->why && json->at < json->end : gh_expect(json, ',');
}

/* ---- strings --------------------------------------------------------------------------------- */

static bool hex(struct gh_json *json, uint32_t *value) {
    *value = 0;
    if (json->end - json->at < 4) return gh_wrong(json, "a string does not end");
    for (int k = 0; k < 4; k++) {
        const char c = *json->at++;
        const char *digits = "0123456789abcdef", *found = c ? strchr(digits, c | 0x20) : NULL;
        if (!found) return gh_wrong(json, "an escape has four hexadecimal digits");
        *value = *value << 4 | (uint32_t)(found - digits);
    }
    return true;
}

static char *utf8(char *to, uint32_t c) {
    if (c < 0x80) *to++ = (char)c;
    else if (c < 0x800) *to++ = (char)(0xc0 | c >> 6), *to++ = (char)(0x80 | (c & 0x3f));
    else {
        if (c < 0x10000) *to++ = (char)(0xe0 | c >> 12);
        else *to++ = (char)(0xf0 | c >> 18), *to++ = (char)(0x80 | (c >> 12 & 0x3f));
        *to++ = (char)(0x80 | (c >> 6 & 0x3f));
        *to++ = (char)(0x80 | (c & 0x3f));
    }
    return to;
}

/* Behind the backslash. */
static bool escape(struct gh_json *json, char **to) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (json->at == json->end) return gh_wrong(json, "a string does not end");
    const char c = *json->at++, *found = c ? strchr(names, c) : NULL;
    uint32_t high, low;
    if (found) {
        *(*to)++ = values[found - names];
        return true;
    }
    if (c != 'u' || !hex(json, &high)) return gh_wrong(json, "there is no such escape");
    if (high >= 0xd800 && high < 0xdc00 && json->end - json->at >= 6 &&
        memcmp(json->at, "\\u", 2) == 0) {
        const char *kept = json->at;
        json->at += 2;
        if (!hex(json, &low)) return false;
        if (low >= 0xdc00 && low < 0xe000)
            high = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
        else json->at = kept;
    }
    if (!high) return gh_wrong(json, "a name has no zero byte");
    *to = utf8(*to, high);
    return true;
}

bool gh_string(struct gh_json *json, char *to, size_t *nbytes) {
    const char *begin = to;
    if (!gh_expect(json, '"')) return false;
    while (json->at < json->end) {
        const char c = *json->at++;
        if (c == '"') {
            *to = 0;
            *nbytes = (size_t)(to - begin);
            return true;
        }
        if ((unsigned char)c < 0x20) return gh_wrong(json, "a string has control characters");
        if (c != '\\') *to++ = c;
        else if (!escape(json, &to)) return false;
    }
    return gh_wrong(json, "a string does not end");
}

/* ---- other values ---------------------------------------------------------------------------- */

bool gh_number(struct gh_json *json, uint64_t most, uint64_t *value) {
    const char *begin = json->at;
    *value = 0;
    for (gh_peek(json), begin = json->at; json->at < json->end; json->at++) {
        const char c = *json->at;
        if (c < '0' || c > '9') break;
        const uint64_t digit = (uint64_t)(c - '0');
        if (*value > (most - digit) / 10) return gh_wrong(json, "a number is too large");
        *value = 10 * *value + digit;
    }
    if (json->at == begin) return gh_wrong(json, "it has something else in place of a number");
    if (json->at < json->end && strchr(".eE", *json->at) && *json->at)
        return gh_wrong(json, "a number is no integer");
    return true;
}

static bool skip_string(struct gh_json *json) {
    if (!gh_expect(json, '"')) return false;
    for (; json->at < json->end; json->at++) {
        if (*json->at == '"') return json->at++, true;
        if (*json->at == '\\' && ++json->at == json->end) break;
    }
    return gh_wrong(json, "a string does not end");
}

/* A number or a word, among them what Python writes for numbers that JSON does not have. */
static bool skip_word(struct gh_json *json) {
    static const char chars[] = "+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const char *begin = json->at;
    while (json->at < json->end && *json->at && strchr(chars, *json->at)) json->at++;
    return json->at > begin || gh_wrong(json, "its JSON is not valid");
}

bool gh_skip(struct gh_json *json) {
    char closes[MAX_DEPTH];
    int depth = 0;
    do {
        bool first = false;
        const char c = gh_peek(json);
        if (c == '{' || c == '[') {
            if (depth == MAX_DEPTH) return gh_wrong(json, "it is too deep");
            json->at++;
            closes[depth++] = c == '{' ? '}' : ']';
            first = true;
        } else if (c == '"' ? !skip_string(json) : !skip_word(json)) return false;
        while (depth && !gh_more(json, closes[depth - 1], first)) {
            if (json->why) return false;
            depth--;
            first = false;
        }
        if (depth && closes[depth - 1] == '}' && (!skip_string(json) || !gh_expect(json, ':')))
            return false;
    } while (depth && !json->why);
    return !json->why;
}
