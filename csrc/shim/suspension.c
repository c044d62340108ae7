/* SPDX-License-Identifier: Apache-2.0 */
/* suspension.c -- waits for the end of a suspension; see suspension.h.
 *
 * Each side writes its own word before it reads the other's: a thread counts itself in its slot and
 * then reads the quota; the supervisor closes the gate in the quota and then reads the slots.
 */
#include "shim/suspension.h"
#include "shim/shim.h"

#include <time.h>

#define POLL_NS 2000000

int suspension_is_on(void)
{
    return (region_flags(shim.region.quota) & QUOTA_GATED) != 0;
}

void suspension_wait(void)
{
    const struct timespec pause = {.tv_nsec = POLL_NS};

    while (suspension_is_on())
        nanosleep(&pause, NULL);
}

static uint64_t *count_of_slot(void)
{
    return &shim.region.usage->slots[shim.region.slot].waiting;
}

void suspension_enter(void)
{
    for (;;) {
        __atomic_add_fetch(count_of_slot(), 1, __ATOMIC_SEQ_CST);
        if (likely(!suspension_is_on()))
            return;
        suspension_leave();
        suspension_wait();
    }
}

void suspension_leave(void)
{
    __atomic_sub_fetch(count_of_slot(), 1, __ATOMIC_SEQ_CST);
}
