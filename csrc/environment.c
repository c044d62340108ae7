/* SPDX-License-Identifier: Apache-2.0 */
/* environment.c -- exchanges the whole array behind environ; see environment.h.
 *
 * Whoever reads the environment reads one of two whole arrays. Arrays and strings that were ever
 * in sight are not freed, because a reader may be in them for as long as the process lives; the
 * same ones are shown again as long as nothing changed.
 */
#include "environment.h"
#include "compiler.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 16 /* how often somebody else may change the environment under our hands */

extern char **environ;

static struct {
    char **before;  /* what was there, possibly NULL */
    char **array;   /* what is shown instead */
    char **initial; /* the array as we made it, to see whether somebody changed it */
    size_t count;   /* of its entries, the NULL at the end not counted */
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

/* Whether the view made last shows *entry* in the environment as it is now. */
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
    free(view.initial); /* the only one of them that nobody else ever saw */
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
            discard_view(); /* nobody has seen it */
    }
    free(entry);
    return -ENOMEM;
}

/* Put the original in the place of our entry, or take ours out, wherever it went. */
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
    /* Somebody set a variable meanwhile: theirs stays, in the array where they put it. */
    replace_entry(__atomic_load_n(&environ, __ATOMIC_SEQ_CST));
    view.array = NULL;
}
