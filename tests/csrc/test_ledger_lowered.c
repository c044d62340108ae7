/* SPDX-License-Identifier: Apache-2.0 */
/* test_ledger_lowered.c -- a limit that is lowered at every instruction of a charge.
 *
 * A process is single-stepped to the n-th instruction of a charge. There the test lowers the limit
 * and reads the ledger, as the node side does, and lets the charge finish. The final charge must be
 * within the new limit, or have been in the ledger when it was read.
 */
#include <errno.h>

#include "check.h"
#include "core/ledger.h"
#include "scratch_region.h"
#include "victim.h"

#define LIMIT   (UINT64_C(100) << 20)
#define LOWERED (LIMIT / 4)

static struct region region;
static struct ledger ledger = {.region = &region};

static int join(const struct scratch *scratch)
{
    struct region_reason reason;

    if (scratch_open(scratch, &region, &reason) || slots_claim(&region, 0, &reason))
        return -1;
    ledger.limit[0] = LIMIT;
    ledger.generation = region_generation(region.quota);
    return 0;
}

static void charge_traced(const struct scratch *scratch, uint64_t bytes)
{
    victim_is_traced();
    if (join(scratch) != 0)
        _exit(1);
    if (bytes == BLOCK_BYTES) { /* so that it has a block reserved */
        ledger_charge(&ledger, 0, bytes);
        ledger_refund(&ledger, 0, bytes);
    }
    victim_stops();
    ledger_charge(&ledger, 0, bytes);
    victim_stops();
}

/* Write a limit as the node side does: over the inactive copy, the generation last. */
static void write_limit(int quota, uint64_t generation, uint64_t vmemory)
{
    struct quota_limits limits = scratch_limits(vmemory);
    size_t copy = (generation - 1) % 2;
    off_t place = (off_t) (offsetof(struct quota_file, limits) + copy * sizeof(limits));
    uint64_t none = 0;

    limits.generation = generation;
    limits.checksum = region_checksum(&limits);
    CHECK("written", pwrite(quota, &none, sizeof(none), place) == sizeof(none) &&
                         pwrite(quota, (char *) &limits + 8, sizeof(limits) - 8, place + 8) ==
                             (ssize_t) sizeof(limits) - 8 &&
                         pwrite(quota, &limits, 8, place) == 8);
}

static int open_to_write(const char *quota)
{
    int fd;

    CHECK("opened for writing", chmod(quota, 0600) == 0);
    fd = open(quota, O_RDWR | O_CLOEXEC);
    CHECK("closed again", chmod(quota, 0444) == 0);
    return fd;
}

static uint64_t held(void)
{
    uint64_t sum = 0;

    for (unsigned slot = 0; slot < REGION_SLOTS; slot++)
        sum += region_held(&region, 0, slot);
    return sum;
}

static void no_charge_exceeds_a_limit_lowered_at_any_instruction(uint64_t bytes, uint64_t lowered)
{
    struct scratch scratch = scratch_make(LIMIT);
    unsigned refused = 0, seen = 0, unseen = 0;
    uint64_t generation = 2;
    int alive = 1;
    int quota;

    quota = open_to_write(scratch.quota);
    CHECK("the node side has the ledger", join(&scratch) == 0);
    for (unsigned steps = 0; alive && steps < 20000; steps++) {
        struct victim victim = {.pid = fork()};
        uint64_t before, after;

        if (victim.pid == 0)
            charge_traced(&scratch, bytes);
        CHECK("it stands before the charge", victim_stands(&victim));
        alive = victim_step(&victim, steps);
        write_limit(quota, generation++, lowered);
        before = held();
        if (alive)
            victim_finish(&victim);
        after = held();
        refused += after == 0;
        seen += after > lowered && before >= after;
        unseen += after > lowered && before < after;
        victim_kill(&victim);
        region.usage->scanned_ns = 0;
        slots_reap(&region);
        write_limit(quota, generation++, LIMIT);
    }
    printf("%u charges refused, %u seen in the ledger, %u not\n", refused, seen, unseen);
    CHECK("some had not begun", refused > 2);
    CHECK("some were there before", seen > 2);
    CHECK_EQUAL("above the lowered limit, and not in the ledger when it was read", unseen, 0);
    close(quota);
    slots_release(&region);
    scratch_remove(&scratch);
}

/* The thread still has the old limits, as while another thread is updating them. */
static void charge_refused_by_an_old_limit_is_retried_with_the_new_one(void)
{
    struct scratch scratch = scratch_make(LIMIT);

    CHECK("joined", join(&scratch) == 0);
    ledger.limit[0] = LOWERED;
    ledger.generation = 0;
    CHECK_EQUAL("it fits the limit that counts", ledger_charge(&ledger, 0, LIMIT / 2), 0);
    CHECK_EQUAL("and is charged once", held(), LIMIT / 2);
    CHECK_EQUAL("more does not", ledger_charge(&ledger, 0, LIMIT), -ENOMEM);
    CHECK_EQUAL("and is not charged", held(), LIMIT / 2);
    slots_release(&region);
    scratch_remove(&scratch);
}

static void set_limit(int quota, uint64_t generation, uint64_t vmemory)
{
    write_limit(quota, generation, vmemory);
    ledger.limit[0] = vmemory;
    ledger.generation = generation;
}

static void block_reserved_within_an_older_limit_is_summed_again(void)
{
    struct scratch scratch = scratch_make(LIMIT);
    int quota = open_to_write(scratch.quota);

    CHECK("joined", join(&scratch) == 0);
    region.usage->high_water = 2; /* it is not alone */
    CHECK_EQUAL("charged", ledger_charge(&ledger, 0, BLOCK_BYTES), 0);
    ledger_refund(&ledger, 0, BLOCK_BYTES);
    CHECK("and reserved", region.usage->charged[0][region.slot] & LEDGER_BLOCK);
    CHECK_EQUAL("more than the next limit", ledger_charge(&ledger, 0, LIMIT / 2), 0);
    set_limit(quota, 2, LOWERED);
    CHECK_EQUAL("it does not fit", ledger_charge(&ledger, 0, BLOCK_BYTES), -ENOMEM);
    CHECK_EQUAL("and is not charged", held(), LIMIT / 2);
    set_limit(quota, 3, LIMIT);
    CHECK_EQUAL("it fits again", ledger_charge(&ledger, 0, BLOCK_BYTES), 0);
    CHECK_EQUAL("and is charged once", held(), LIMIT / 2 + BLOCK_BYTES);
    close(quota);
    slots_release(&region);
    scratch_remove(&scratch);
}

int main(void)
{
    charge_refused_by_an_old_limit_is_retried_with_the_new_one();
    block_reserved_within_an_older_limit_is_summed_again();
    stay_on_one_processor();
    no_charge_exceeds_a_limit_lowered_at_any_instruction(LIMIT / 2, LOWERED);
    no_charge_exceeds_a_limit_lowered_at_any_instruction(BLOCK_BYTES, BLOCK_BYTES / 2);
    return check_end();
}
