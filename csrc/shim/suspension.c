/* SPDX-License-Identifier: Apache-2.0 */
/* suspension.c -- waits for the end of a suspension; see suspension.h.
 *
 * Each side writes its own word before it reads the other's: a thread counts itself in its slot and
 * then reads the quota; the supervisor closes the gate in the quota and then reads the slots.
 */
#include "shim/suspension.h"
#include "core/slots.h"

#include <time.h>

#define POLL_NS 2000000

uint64_t suspension_noted;

int suspension_is_on(void)
{
    return (region_flags(shim.region.quota) & QUOTA_GATED) != 0;
}

static void note(uint64_t *word)
{
    __atomic_store_n(word, clock_now_ns(CLOCK_MONOTONIC), __ATOMIC_RELAXED);
}

/* While a suspension is on, each call is noted: the first may have come before it. */
void suspension_note_slowly(void)
{
    uint64_t generation = region_generation(shim.region.quota);

    if (!shim.region.links) /* the usage file has no room for it */
        return;
    if (suspension_is_on()) {
        note(&shim.region.usage->wanted_ns);
        return;
    }
    note(&shim.region.usage->worked_ns);
    __atomic_store_n(&suspension_noted, generation, __ATOMIC_RELAXED);
}

static void pause_on(void)
{
    const struct timespec pause = {.tv_nsec = POLL_NS};

    nanosleep(&pause, NULL);
}

static void note_wait(void)
{
    if (suspension_is_on() && shim.region.links)
        note(&shim.region.usage->wanted_ns);
}

void suspension_wait(void)
{
    note_wait();
    while (suspension_is_on())
        pause_on();
}

void suspension_wait_to_begin(void)
{
    note_wait();
    while (suspension_is_on() && !slots_are_closed(&shim.region, shim.limits.flags))
        pause_on();
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

int suspension_try_enter(void)
{
    __atomic_add_fetch(count_of_slot(), 1, __ATOMIC_SEQ_CST);
    if (likely(!suspension_is_on()))
        return 1;
    suspension_leave();
    return 0;
}

void suspension_leave(void)
{
    __atomic_sub_fetch(count_of_slot(), 1, __ATOMIC_SEQ_CST);
}

void suspension_count_unmovable(int change)
{
    __atomic_add_fetch(&shim.region.usage->slots[shim.region.slot].unmovable, (uint64_t) change,
                       __ATOMIC_RELAXED);
}
