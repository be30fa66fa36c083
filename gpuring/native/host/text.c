/* Text that others have chosen, as it may be logged and shown. */
#include "text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Cuts no character of UTF-8 in two. */
static void mark_cut(char *text, size_t room) {
    size_t n = room - 4; /* room for the mark */
    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
    memcpy(text + n, "\xe2\x80\xa6", 4); /* … */
}

void gh_add_list(struct gh_text *text, const char *format, va_list arguments) {
    const size_t room = text->room - text->nbytes;
    if (room <= 1) return; /* it was cut */
    const int n = vsnprintf(text->begin + text->nbytes, room, format, arguments);
    text->nbytes += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
    if (n >= 0 && (size_t)n >= room) mark_cut(text->begin, text->room);
}

void gh_add(struct gh_text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    gh_add_list(text, format, arguments);
    va_end(arguments);
}

/* The next character and how many bytes it has. U+FFFD for one byte that begins none. */
static uint32_t next(const char *text, size_t nbytes, size_t *taken) {
    const uint8_t *at = (const uint8_t *)text;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t n = at[0] < 0x80   ? 1
                     : at[0] < 0xc0 ? 0
                     : at[0] < 0xe0 ? 2
                     : at[0] < 0xf0 ? 3
                     : at[0] < 0xf8 ? 4
                                    : 0;
    *taken = 1;
    if (n == 1) return at[0];
    if (n == 0 || n > nbytes) return 0xfffd;
    uint32_t found = at[0] & (0x7fu >> n);
    for (size_t k = 1; k < n; k++) {
        if ((at[k] & 0xc0) != 0x80) return 0xfffd;
        found = found << 6 | (at[k] & 0x3fu);
    }
    if (found < least[n] || found > 0x10ffff || (found >= 0xd800 && found < 0xe000)) return 0xfffd;
    *taken = n;
    return found;
}

bool gh_is_utf8(const char *text, size_t nbytes) {
    for (size_t at = 0, taken; at < nbytes; at += taken)
        if (next(text + at, nbytes - at, &taken) == 0xfffd && taken == 1) return false;
    return true;
}

/* Whether the character can be shown. Control and format characters cannot, nor separators other
 * than the space, nor code points that have no glyph. */
static bool is_shown(uint32_t c) {
    static const uint32_t hidden[][2] = {
        {0, 0x1f},           {0x7f, 0xa0},         {0xad, 0xad},       {0x600, 0x605},
        {0x61c, 0x61c},      {0x6dd, 0x6dd},       {0x70f, 0x70f},     {0x890, 0x891},
        {0x8e2, 0x8e2},      {0x1680, 0x1680},     {0x180e, 0x180e},   {0x2000, 0x200f},
        {0x2028, 0x202f},    {0x205f, 0x206f},     {0x3000, 0x3000},   {0xe000, 0xf8ff},
        {0xfdd0, 0xfdef},    {0xfeff, 0xfeff},     {0xfff9, 0xfffb},   {0xfffe, 0xffff},
        {0x110bd, 0x110bd},  {0x110cd, 0x110cd},   {0x13430, 0x1343f}, {0x1bca0, 0x1bca3},
        {0x1d173, 0x1d17a},  {0xe0000, 0xe007f},    {0xf0000, 0x10ffff},
    };
    for (size_t k = 0; k < sizeof hidden / sizeof *hidden; k++)
        if (c >= hidden[k][0] && c <= hidden[k][1]) return false;
    return true;
}

static int escaped(char *to, size_t room, uint32_t c) {
    if (c == '\n') return snprintf(to, room, "\\n");
    if (c == '\r') return snprintf(to, room, "\\r");
    if (c == '\t') return snprintf(to, room, "\\t");
    if (c < 0x100) return snprintf(to, room, "\\x%02x", (unsigned)c);
    return snprintf(to, room, c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
}

char *gh_printable(char *to, size_t room, const char *text, size_t nbytes) {
    size_t done = 0;
    for (size_t at = 0, taken; at < nbytes; at += taken) {
        char piece[16];
        const uint32_t c = next(text + at, nbytes - at, &taken);
        size_t n = taken;
        if (c == 0xfffd && taken == 1) memcpy(piece, "\xef\xbf\xbd", n = 3);
        else if (is_shown(c)) memcpy(piece, text + at, n);
        else n = (size_t)escaped(piece, sizeof piece, c);
        if (done + n >= room) break;
        memcpy(to + done, piece, n);
        done += n;
    }
    to[done] = 0;
    return to;
}
