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

static void charge_traced(const struct scratch *scratch)
{
    victim_is_traced();
    if (join(scratch) != 0)
        _exit(1);
    victim_stops();
    ledger_charge(&ledger, 0, LIMIT / 2);
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

static uint64_t held(void)
{
    uint64_t sum = 0;

    for (unsigned slot = 0; slot < REGION_SLOTS; slot++)
        sum += __atomic_load_n(&region.usage->charged[0][slot], __ATOMIC_SEQ_CST) & LEDGER_BYTES;
    return sum;
}

static void no_charge_exceeds_a_limit_lowered_at_any_instruction(void)
{
    struct scratch scratch = scratch_make(LIMIT);
    unsigned refused = 0, seen = 0, unseen = 0;
    uint64_t generation = 2;
    int alive = 1;
    int quota;

    CHECK("opened for writing", chmod(scratch.quota, 0600) == 0);
    quota = open(scratch.quota, O_RDWR | O_CLOEXEC);
    CHECK("closed again", chmod(scratch.quota, 0444) == 0);
    CHECK("the node side has the ledger", join(&scratch) == 0);
    for (unsigned steps = 0; alive && steps < 20000; steps++) {
        struct victim victim = {.pid = fork()};
        uint64_t before, after;

        if (victim.pid == 0)
            charge_traced(&scratch);
        CHECK("it stands before the charge", victim_stands(&victim));
        alive = victim_step(&victim, steps);
        write_limit(quota, generation++, LOWERED);
        before = held();
        if (alive)
            victim_finish(&victim);
        after = held();
        refused += after == 0;
        seen += after > LOWERED && before >= after;
        unseen += after > LOWERED && before < after;
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

int main(void)
{
    charge_refused_by_an_old_limit_is_retried_with_the_new_one();
    stay_on_one_processor();
    no_charge_exceeds_a_limit_lowered_at_any_instruction();
    return check_end();
}
