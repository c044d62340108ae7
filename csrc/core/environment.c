/* SPDX-License-Identifier: Apache-2.0 */
/* environment.c -- swaps the whole array behind environ; see environment.h.
 *
 * Each reader sees one of two complete arrays. Arrays and strings that were ever visible are not
 * freed, because a reader may use them for as long as the process lives; they are reused as long as
 * nothing changed.
 */
#include "core/environment.h"
#include "core/compiler.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 16 /* how often other threads may change the environment meanwhile */

extern char **environ;

static struct {
    char **before;  /* the original array, possibly NULL */
    char **array;   /* the array shown instead */
    char **initial; /* a copy of it as we made it, to detect changes by other threads */
    size_t count;   /* number of its entries, without the NULL at the end */
    char *entry;    /* ours, at *place* */
    char *original; /* the entry that ours stands for, or NULL */
    size_t place;
    int shown;
} view;

static size_t count_entries(char **array)
{
    size_t count = 0;

    while (array && __atomic_load_n(&array[count], __ATOMIC_RELAXED))
        count++;
    return count;
}

static int is_untouched(void)
{
    return memcmp(view.array, view.initial, (view.count + 1) * sizeof(*view.array)) == 0;
}

/* Whether the last view can be reused: it shows *entry* in the environment as it is now. */
static int fits(char **before, const char *entry)
{
    size_t count = count_entries(before);

    if (!view.array || before != view.before || strcmp(view.entry, entry) != 0 ||
        view.count != count + !view.original || !is_untouched())
        return 0;
    for (size_t i = 0; i < count; i++)
        if (before[i] != (i == view.place ? view.original : view.array[i]))
            return 0;
    return 1;
}

/* Make a view of *before* with *entry* in it, at the place of the variable that it replaces. */
static int make_view(char **before, char *entry)
{
    size_t name = (size_t) (strchr(entry, '=') - entry) + 1;
    size_t count = count_entries(before);
    char **array = calloc(count + 2, sizeof(*array));
    char **initial = calloc(count + 2, sizeof(*initial));
    size_t place = count;

    if (!array || !initial) {
        free(array);
        free(initial);
        return -ENOMEM;
    }
    for (size_t i = 0; i < count && before[i]; i++) {
        array[i] = before[i];
        if (place == count && strncmp(array[i], entry, name) == 0)
            place = i;
    }
    free(view.initial); /* the only one that was never visible to others */
    view.original = array[place];
    array[place] = entry;
    memcpy(initial, array, (count + 2) * sizeof(*array));
    view.before = before;
    view.array = array;
    view.initial = initial;
    view.count = count_entries(array);
    view.entry = entry;
    view.place = place;
    return 0;
}

static void discard_view(void)
{
    free(view.array);
    free(view.initial);
    view.array = view.initial = NULL;
}

int environment_show(const char *name, const char *value)
{
    char *entry = malloc(strlen(name) + strlen(value) + 2);

    if (!entry)
        return -ENOMEM;
    strcpy(stpcpy(stpcpy(entry, name), "="), value);
    for (int i = 0; i < TRIES; i++) {
        char **before = __atomic_load_n(&environ, __ATOMIC_SEQ_CST);
        int again = fits(before, entry);

        if (!again && make_view(before, entry) != 0)
            break;
        if (__atomic_compare_exchange_n(&environ, &before, view.array, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
            view.shown = 1;
            if (again)
                free(entry);
            return 0;
        }
        if (!again)
            discard_view(); /* it was never visible */
    }
    free(entry);
    return -ENOMEM;
}

/* Replace our entry by the original, or remove it, wherever it is now. */
static void replace_entry(char **array)
{
    while (array && *array && *array != view.entry)
        array++;
    if (!array || !*array)
        return;
    if (view.original) {
        __atomic_store_n(array, view.original, __ATOMIC_SEQ_CST);
        return;
    }
    do
        __atomic_store_n(array, array[1], __ATOMIC_SEQ_CST);
    while (*array++);
}

void environment_restore(void)
{
    char **expected = view.array;

    if (!view.shown)
        return;
    view.shown = 0;
    if (is_untouched() && __atomic_compare_exchange_n(&environ, &expected, view.before, 0,
                                                      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    /* Another thread set a variable meanwhile: it stays, in the array where that thread put it. */
    replace_entry(__atomic_load_n(&environ, __ATOMIC_SEQ_CST));
    view.array = NULL;
}

void environment_after_fork(void)
{
    environment_restore();
}
