/* SPDX-License-Identifier: Apache-2.0 */
/* arguments.c -- parses an argv from a JSON array of strings.
 *
 * A decoded string is never longer than its JSON, so each is decoded in place. Bytes that are not
 * escaped are copied unchanged, valid UTF-8 or not.
 */
#include "programs/sidecar/arguments.h"

#include <stdint.h>

struct text {
    char *at;
    char *end;
};

static void skip_blanks(struct text *text)
{
    while (text->at < text->end &&
           (*text->at == ' ' || *text->at == '\t' || *text->at == '\n' || *text->at == '\r'))
        text->at++;
}

static int take(struct text *text, char wanted)
{
    if (text->at == text->end || *text->at != wanted)
        return 0;
    text->at++;
    return 1;
}

static int digit_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    digit |= 'a' ^ 'A';
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* The four digits after \u, or -1. */
static int32_t parse_unit(struct text *text)
{
    int32_t unit = 0;

    if (text->end - text->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int value = digit_value(*text->at++);

        if (value < 0)
            return -1;
        unit = unit * 16 + value;
    }
    return unit;
}

/* A character above 0xFFFF is two units; a lone surrogate or a NUL is an error (-1). */
static int32_t parse_character(struct text *text)
{
    int32_t unit = parse_unit(text);
    int32_t low;

    if (unit <= 0 || (unit >= 0xDC00 && unit <= 0xDFFF))
        return -1;
    if (unit < 0xD800 || unit > 0xDBFF)
        return unit;
    if (!take(text, '\\') || !take(text, 'u'))
        return -1;
    low = parse_unit(text);
    if (low < 0xDC00 || low > 0xDFFF)
        return -1;
    return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
}

static char *write_utf8(char *to, int32_t character)
{
    if (character < 0x80) {
        *to++ = (char) character;
        return to;
    }
    if (character < 0x800) {
        *to++ = (char) (0xC0 | character >> 6);
    } else {
        if (character < 0x10000) {
            *to++ = (char) (0xE0 | character >> 12);
        } else {
            *to++ = (char) (0xF0 | character >> 18);
            *to++ = (char) (0x80 | (character >> 12 & 0x3F));
        }
        *to++ = (char) (0x80 | (character >> 6 & 0x3F));
    }
    *to++ = (char) (0x80 | (character & 0x3F));
    return to;
}

/* Decode the escape behind a backslash; returns where to go on writing, NULL if it is invalid. */
static char *unescape(struct text *text, char *to)
{
    static const char escapes[] = "\"\\/bfnrt";
    static const char meanings[] = "\"\\/\b\f\n\r\t";
    int32_t character;

    if (text->at == text->end)
        return NULL;
    if (take(text, 'u')) {
        character = parse_character(text);
        return character < 0 ? NULL : write_utf8(to, character);
    }
    for (size_t i = 0; escapes[i]; i++) {
        if (take(text, escapes[i])) {
            *to = meanings[i];
            return to + 1;
        }
    }
    return NULL;
}

/* One string, ended by a NUL in place of its closing quote or before it. */
static char *parse_string(struct text *text)
{
    char *string, *to;

    if (!take(text, '"'))
        return NULL;
    string = to = text->at;
    while (text->at < text->end) {
        unsigned char byte = (unsigned char) *text->at++;

        if (byte == '"') {
            *to = '\0';
            return string;
        }
        if (byte < ' ')
            return NULL;
        if (byte != '\\') {
            *to++ = (char) byte;
            continue;
        }
        to = unescape(text, to);
        if (!to)
            return NULL;
    }
    return NULL;
}

long arguments_parse(char *bytes, size_t length, char **argv, size_t most)
{
    struct text text = {bytes, bytes + length};
    size_t count = 0;

    skip_blanks(&text);
    if (!take(&text, '['))
        return -1;
    do {
        skip_blanks(&text);
        if (count == most)
            return -1;
        argv[count] = parse_string(&text);
        if (!argv[count])
            return -1;
        count++;
        skip_blanks(&text);
    } while (take(&text, ','));
    if (!take(&text, ']'))
        return -1;
    skip_blanks(&text);
    if (text.at != text.end)
        return -1;
    argv[count] = NULL;
    return (long) count;
}
