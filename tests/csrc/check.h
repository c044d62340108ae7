/* SPDX-License-Identifier: Apache-2.0 */
/* check.h -- assertions for C unit tests: print the sentence that failed, continue, report totals.
 */
#ifndef PYVGPU_TESTS_CHECK_H
#define PYVGPU_TESTS_CHECK_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_passed;
static int check_failed;

#define CHECK(sentence, condition)                                                      \
    do {                                                                                \
        if (condition) {                                                                \
            check_passed++;                                                             \
        } else {                                                                        \
            check_failed++;                                                             \
            fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, sentence, \
                    #condition);                                                        \
        }                                                                               \
    } while (0)

#define CHECK_EQUAL(sentence, got, expected)                                                \
    do {                                                                                    \
        uint64_t check_got = (uint64_t) (got);                                              \
        uint64_t check_expected = (uint64_t) (expected);                                    \
                                                                                            \
        if (check_got == check_expected) {                                                  \
            check_passed++;                                                                 \
        } else {                                                                            \
            check_failed++;                                                                 \
            fprintf(stderr, "%s:%d: %s: got %" PRIu64 ", expected %" PRIu64 "\n", __FILE__, \
                    __LINE__, sentence, check_got, check_expected);                         \
        }                                                                                   \
    } while (0)

/* True under a process emulator, which cannot run the following test because of *why*. */
static inline int check_emulated(const char *why)
{
    if (!getenv("CHECK_EMULATED"))
        return 0;
    printf("left out, because %s\n", why);
    return 1;
}

/* Long tests try one of so many cases: CHECK_ONE_OF of the environment; 1 is all of them. */
static inline unsigned check_one_of(void)
{
    const char *given = getenv("CHECK_ONE_OF");
    unsigned long number = given ? strtoul(given, NULL, 10) : 1;

    return number >= 1 && number <= 1000 ? (unsigned) number : 1;
}

static inline int check_end(void)
{
    printf("%d checks passed, %d failed\n", check_passed, check_failed);
    return check_failed || !check_passed;
}

#endif
