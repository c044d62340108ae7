/* SPDX-License-Identifier: Apache-2.0 */
/* test_environment.c -- temporarily setting a variable, without losing concurrent changes. */
#include "check.h"
#include "core/environment.h"

#include <pthread.h>
#include <stdlib.h>

#define NAME   "SHOWN"
#define ROUNDS 20000
#define OTHERS 4

extern char **environ;

static int reads(const char *name, const char *value)
{
    const char *got = getenv(name);

    return value ? got && strcmp(got, value) == 0 : !got;
}

static void a_variable_is_shown_and_goes_again(const char *original)
{
    char **before;

    clearenv();
    setenv("FIRST", "1", 1);
    if (original)
        setenv(NAME, original, 1);
    setenv("LAST", "2", 1);
    before = environ;
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL("it is shown", environment_show(NAME, "other"), 0);
        CHECK("with its value", reads(NAME, "other"));
        CHECK("the others are there", reads("FIRST", "1") && reads("LAST", "2"));
        environment_restore();
        CHECK("as before", reads(NAME, original));
        CHECK("in the very place", environ == before);
    }
    environment_restore();
    CHECK("once is enough", environ == before);
}

static void empty_environment(void)
{
    environ = NULL;
    CHECK_EQUAL("it is shown", environment_show(NAME, ""), 0);
    CHECK("empty", reads(NAME, ""));
    environment_restore();
    CHECK("and gone", environ == NULL);
}

static void what_others_do_meanwhile_is_kept(const char *original)
{
    clearenv();
    setenv("CHANGED", "before", 1);
    setenv("REMOVED", "before", 1);
    if (original)
        setenv(NAME, original, 1);

    environment_show(NAME, "other");
    setenv("CHANGED", "meanwhile", 1);
    environment_restore();
    CHECK("a changed variable", reads("CHANGED", "meanwhile"));
    CHECK("and ours as it was", reads(NAME, original));

    environment_show(NAME, "other");
    setenv("ADDED", "meanwhile", 1);
    environment_restore();
    CHECK("an added variable", reads("ADDED", "meanwhile") && reads("CHANGED", "meanwhile"));
    CHECK("and ours as it was", reads(NAME, original));

    environment_show(NAME, "other");
    unsetenv("REMOVED");
    environment_restore();
    CHECK("a removed variable", reads("REMOVED", NULL) && reads("ADDED", "meanwhile"));
    CHECK("and ours as it was", reads(NAME, original));

    environment_show(NAME, "other");
    setenv(NAME, "mine", 1);
    environment_restore();
    CHECK("even of that name", reads(NAME, "mine"));

    environment_show(NAME, "other");
    clearenv();
    environment_restore();
    CHECK("an emptied environment", reads(NAME, NULL) && reads("CHANGED", NULL));
}

static int stop;

static void *read_all(void *wrong)
{
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        const char *shown = getenv(NAME);

        if (!shown || (strcmp(shown, "mine") != 0 && strcmp(shown, "other") != 0))
            __atomic_add_fetch((int *) wrong, 1, __ATOMIC_RELAXED);
        if (getenv("NEVER"))
            __atomic_add_fetch((int *) wrong, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Thousands of switches beside reading threads: each reader sees one value or the other. */
static void concurrent_readers_see_either_value(void)
{
    pthread_t readers[OTHERS];
    int wrong = 0;

    clearenv();
    for (int i = 0; i < 50; i++) {
        char name[32];

        snprintf(name, sizeof(name), "VARIABLE_%d", i);
        setenv(name, "1", 1);
    }
    setenv(NAME, "mine", 1);
    for (int i = 0; i < OTHERS; i++)
        pthread_create(&readers[i], NULL, read_all, &wrong);
    for (int i = 0; i < ROUNDS; i++) {
        environment_show(NAME, "other");
        environment_restore();
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < OTHERS; i++)
        pthread_join(readers[i], NULL);
    CHECK_EQUAL("readings of anything else", wrong, 0);
}

static void *set_and_set(void *unused)
{
    char value[16];

    (void) unused;
    for (int i = 0; i <= ROUNDS; i++) {
        snprintf(value, sizeof(value), "%d", i);
        setenv("COUNTER", value, 1);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void concurrent_setters_survive(void)
{
    pthread_t setter;

    setenv("COUNTER", "0", 1);
    stop = 0;
    pthread_create(&setter, NULL, set_and_set, NULL);
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        environment_show(NAME, "other");
        environment_restore();
    }
    pthread_join(setter, NULL);
    CHECK("ours is as it was", reads(NAME, "mine"));
    setenv("COUNTER", "end", 1);
    CHECK("theirs can be set", reads("COUNTER", "end"));
}

int main(void)
{
    a_variable_is_shown_and_goes_again("mine");
    a_variable_is_shown_and_goes_again(NULL);
    empty_environment();
    what_others_do_meanwhile_is_kept("mine");
    what_others_do_meanwhile_is_kept(NULL);
    concurrent_readers_see_either_value();
    concurrent_setters_survive();
    return check_end();
}
