/* SPDX-License-Identifier: Apache-2.0 */
/* lock.c -- checks the order of locks in builds without NDEBUG; see lock.h. */
#include "core/lock.h"

#ifndef NDEBUG
#include "core/log.h"

#include <stdlib.h>

/* What this thread holds, in the order in which it took them. Small and in static TLS: a statically
 * linked program has no __tls_get_addr(). */
#define STATIC_TLS __thread __attribute__((tls_model("initial-exec")))
enum { MOST_HELD = 8 };
static STATIC_TLS struct {
    enum lock_rank rank;
    const void *lock;
} held[MOST_HELD];
static STATIC_TLS unsigned count;

static const char *describe(enum lock_rank rank)
{
    static const char *const names[] = {
#define LOCK_NAME(rank, description) [rank] = description,
        LOCK_ORDER(LOCK_NAME)
#undef LOCK_NAME
    };

    return names[rank];
}

void lock_check(enum lock_rank rank, const void *lock)
{
    for (unsigned i = 0; i < count; i++)
        if (held[i].rank >= rank && held[i].lock != lock) {
            log_error("lock order (lock.h): %s is held, so %s must not be taken",
                      describe(held[i].rank), describe(rank));
            abort();
        }
}

void lock_note_taken(enum lock_rank rank, const void *lock)
{
    if (count == MOST_HELD) {
        log_error("lock order (lock.h): %u locks are held", count);
        abort();
    }
    held[count].rank = rank;
    held[count++].lock = lock;
}

void lock_note_released(enum lock_rank rank)
{
    unsigned i = count;

    while (i > 0 && held[i - 1].rank != rank)
        i--;
    if (!i) {
        log_error("lock order (lock.h): %s is released by a thread that does not hold it",
                  describe(rank));
        abort();
    }
    for (count--; i <= count; i++)
        held[i - 1] = held[i];
}

void lock_after_fork(void)
{
    count = 0;
}

#else
void lock_after_fork(void)
{
}
#endif
