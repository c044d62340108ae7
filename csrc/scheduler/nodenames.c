/* SPDX-License-Identifier: Apache-2.0 */
/* nodenames.c -- names of nodes in JSON; see nodenames.h.
 *
 * The table is open, with as many places again as it has names at least. A place has a part of its
 * name's hash, so that most others are passed without a look at their letters, which lie one after
 * the other.
 */
#include "nodenames.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_PLACES 1024
#define LEAST_BYTES  16384

struct place {
    uint32_t hash; /* its upper half */
    uint32_t name; /* + 1; 0: free */
};

struct name {
    uint32_t at; /* in letters */
    uint32_t size;
    uint32_t number;
};

struct nodenames {
    struct place *places;
    struct name *names; /* half as many as places */
    char *letters;
    uint32_t mask; /* places - 1 */
    uint32_t count;
    uint32_t used, room; /* of letters */
};

struct cursor {
    const char *at, *end;
};

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 32);
}

static uint64_t hash_of(const char *name, uint32_t size)
{
    uint64_t hash = size, word;

    for (; size >= sizeof(word); size -= (uint32_t) sizeof(word), name += sizeof(word)) {
        memcpy(&word, name, sizeof(word));
        hash = mix(hash, word);
    }
    word = 0;
    memcpy(&word, name, size);
    return mix(hash, word);
}

static bool is(const struct nodenames *table, uint32_t at, const char *name, uint32_t size)
{
    const struct name *known = &table->names[at];

    return known->size == size && !memcmp(table->letters + known->at, name, size);
}

/* Return the place of a name: its own, or the free one that it would get. */
static struct place *find(const struct nodenames *table, const char *name, uint32_t size,
                          uint64_t hash)
{
    uint32_t upper = (uint32_t) (hash >> 32);

    for (uint32_t at = (uint32_t) hash & table->mask;; at = (at + 1) & table->mask) {
        struct place *place = &table->places[at];

        if (!place->name || (place->hash == upper && is(table, place->name - 1U, name, size)))
            return place;
    }
}

/* Let the table have so many places, of which none is taken by a name that it has. */
static int set_places(struct nodenames *table, uint32_t places)
{
    struct place *fresh = calloc(places, sizeof(*fresh));
    struct name *names = realloc(table->names, places / 2 * sizeof(*names));

    if (names)
        table->names = names;
    if (!fresh || !names) {
        free(fresh);
        return -1;
    }
    free(table->places);
    table->places = fresh;
    table->mask = places - 1;
    return 0;
}

static void take_place(struct nodenames *table, uint32_t at)
{
    const struct name *name = &table->names[at];
    uint64_t hash = hash_of(table->letters + name->at, name->size);
    struct place *place = find(table, table->letters + name->at, name->size, hash);

    *place = (struct place) {.hash = (uint32_t) (hash >> 32), .name = at + 1};
}

static int make_room(struct nodenames *table, uint32_t size)
{
    if (size > UINT32_MAX / 4 - table->used)
        return -1;
    if (table->used + size > table->room) {
        uint32_t room = 2 * (table->used + size);
        char *letters = realloc(table->letters, room);

        if (!letters)
            return -1;
        table->letters = letters;
        table->room = room;
    }
    if (table->count < (table->mask + 1) / 2)
        return 0;
    if (table->mask >= UINT32_MAX / 4 || set_places(table, 2 * (table->mask + 1)))
        return -1;
    for (uint32_t at = 0; at < table->count; at++)
        take_place(table, at);
    return 0;
}

struct nodenames *nodenames_new(void)
{
    struct nodenames *table = calloc(1, sizeof(*table));

    if (!table)
        return NULL;
    table->letters = malloc(LEAST_BYTES);
    table->room = LEAST_BYTES;
    if (!table->letters || set_places(table, LEAST_PLACES)) {
        nodenames_free(table);
        return NULL;
    }
    return table;
}

void nodenames_free(struct nodenames *table)
{
    if (!table)
        return;
    free(table->places);
    free(table->names);
    free(table->letters);
    free(table);
}

int nodenames_add(struct nodenames *table, const char *name, uint32_t size, uint32_t number)
{
    if (make_room(table, size))
        return -1;
    table->names[table->count] = (struct name) {.at = table->used, .size = size, .number = number};
    memcpy(table->letters + table->used, name, size);
    table->used += size;
    take_place(table, table->count);
    table->count++;
    return 0;
}

static bool is_plain(const char *text, uint64_t size)
{
    unsigned odd = 0;

    for (uint64_t at = 0; at < size; at++) { /* without a way out, so that it is done in one go */
        unsigned char letter = (unsigned char) text[at];

        odd |= (letter < ' ') | (letter > '~') | (letter == '\\');
    }
    return !odd;
}

static void skip_spaces(struct cursor *cursor)
{
    while (cursor->at < cursor->end && *cursor->at == ' ')
        cursor->at++;
}

/* Take a letter that must come; whether it did. */
static bool take(struct cursor *cursor, char letter)
{
    skip_spaces(cursor);
    if (cursor->at == cursor->end || *cursor->at != letter)
        return false;
    cursor->at++;
    return true;
}

/* Take a name; NULL: there is none. */
static const char *take_name(struct cursor *cursor, uint32_t *size)
{
    const char *name, *quote;

    if (!take(cursor, '"'))
        return NULL;
    name = cursor->at;
    quote = memchr(name, '"', (size_t) (cursor->end - name));
    if (!quote)
        return NULL;
    cursor->at = quote + 1;
    *size = (uint32_t) (quote - name);
    return name;
}

/* Return the next name of a plain text; NULL: there is none. */
static const char *next_name(struct cursor *cursor, uint32_t *size)
{
    const char *name = take_name(cursor, size);

    if (name)
        take(cursor, ',');
    return name;
}

int64_t nodenames_count(const char *text, uint64_t size)
{
    struct cursor cursor = {text, text + size};
    int64_t count = 0;
    uint32_t length;

    if (size > UINT32_MAX || !is_plain(text, size))
        return -1;
    skip_spaces(&cursor);
    if (cursor.at == cursor.end)
        return 0;
    do {
        if (!take_name(&cursor, &length))
            return -1;
        count++;
    } while (take(&cursor, ','));
    return cursor.at == cursor.end ? count : -1;
}

void nodenames_look(const struct nodenames *table, const char *text, uint64_t size,
                    const uint8_t *codes, uint64_t known, uint8_t unknown, uint8_t *found)
{
    struct cursor cursor = {text, text + size};
    const char *name;
    uint32_t length;

    while ((name = next_name(&cursor, &length))) {
        const struct place *place = find(table, name, length, hash_of(name, length));
        uint64_t number = place->name ? table->names[place->name - 1U].number : known;

        *found++ = number < known ? codes[number] : unknown;
    }
}

uint64_t nodenames_write(const char *text, uint64_t size, const uint8_t *found,
                         const struct nodenames_form *forms, char *out)
{
    struct cursor cursor = {text, text + size};
    uint64_t written = 0;
    const char *name;
    uint32_t length;

    while ((name = next_name(&cursor, &length))) {
        const struct nodenames_form *form = &forms[*found++];

        if (!form->before)
            continue;
        if (out) {
            char *to = out + written;

            memcpy(to, form->before, form->before_size);
            memcpy(to + form->before_size, name - 1, length + 2U);
            memcpy(to + form->before_size + length + 2U, form->after, form->after_size);
        }
        written += (uint64_t) form->before_size + length + 2U + form->after_size;
    }
    return written;
}
