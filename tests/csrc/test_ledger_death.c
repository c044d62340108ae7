/* SPDX-License-Identifier: Apache-2.0 */
/* test_ledger_death.c -- kill -9 at every instruction of the ledger's critical sections.
 *
 * A victim is single-stepped to its n-th instruction and killed there, for each n until it gets
 * through. After each death the whole limit must be available again within a second. In the second
 * half neighbours charge and refund all the while: together they never exceed the limit, and none
 * of them ever waits.
 *
 * The claim is sampled: several runs together hit its every instruction (victim.h).
 */
#include "check.h"
#include "core/compiler.h"
#include "core/ledger.h"
#include "scratch_region.h"
#include "victim.h"

#include <errno.h>
#include <sys/mman.h>

#define LIMIT      (UINT64_C(100) << 20)
#define NEIGHBOURS 14

static struct region region;
static struct ledger ledger = {.region = &region, .generation = 1, .limit = {LIMIT}};

static int join(const struct scratch *scratch)
{
    struct region_reason reason;

    return scratch_open(scratch, &region, &reason) || slots_claim(&region, 0, &reason) ? -1 : 0;
}

/* The critical sections: each is prepared, stops itself, and then runs under ptrace. */
enum section { CHARGE, REFUND, CHARGE_REFUSED, CLAIM, REAP, REUSE, RESERVE, TAKE, SECTIONS };

static const struct {
    const char *name;
    unsigned stride; /* a claim is mostly library code, and sampled */
} sections[SECTIONS] = {
    [CHARGE] = {"charge", 1},
    [REFUND] = {"refund", 1},
    [CHARGE_REFUSED] = {"refused charge", 1},
    [CLAIM] = {"claim", 53},
    [REAP] = {"reap", 1},
    [REUSE] = {"charge of a reserved block", 1},
    [RESERVE] = {"refund of a block", 1},
    [TAKE] = {"charge that takes a block", 1},
};

static void die_in(enum section section, const struct scratch *scratch)
{
    victim_is_traced();
    if (section != CLAIM && join(scratch) != 0)
        _exit(1);
    if (section == REFUND && ledger_charge(&ledger, 0, LIMIT / 2) != 0)
        _exit(0); /* no room beside the neighbours: nothing to refund */
    if ((section == REUSE || section == RESERVE || section == TAKE) &&
        ledger_charge(&ledger, 0, BLOCK_BYTES) != 0)
        _exit(0); /* as above */
    if (section == REUSE || section == TAKE)
        ledger_refund(&ledger, 0, BLOCK_BYTES);
    if (section == REAP || section == CHARGE_REFUSED)
        region.usage->scanned_ns = 0;
    victim_stops();
    switch (section) {
    case CHARGE:
        ledger_charge(&ledger, 0, LIMIT / 2);
        break;
    case REFUND:
        ledger_refund(&ledger, 0, LIMIT / 2);
        break;
    case CHARGE_REFUSED:
        ledger_charge(&ledger, 0, LIMIT);
        break;
    case CLAIM:
        join(scratch);
        break;
    case REAP:
        slots_reap(&region);
        break;
    case REUSE:
        ledger_charge(&ledger, 0, BLOCK_BYTES);
        break;
    case RESERVE:
        ledger_refund(&ledger, 0, BLOCK_BYTES);
        break;
    case TAKE:
        ledger_charge(&ledger, 0, LIMIT);
        break;
    case SECTIONS:
        break;
    }
    victim_stops();
}

/* Kill a victim at its *steps*-th instruction; 0 once it got through before that. */
static int kill_at(enum section section, const struct scratch *scratch, unsigned steps)
{
    struct victim victim = {.pid = fork()};
    int alive;

    if (victim.pid == 0)
        die_in(section, scratch);
    alive = victim_stands(&victim) && victim_step(&victim, steps);
    victim_kill(&victim);
    return alive;
}

static uint64_t now_ms(void)
{
    return clock_now_ns(CLOCK_MONOTONIC) / 1000000;
}

/* The guarantee: within a second the whole limit can be charged again; a second of progress as on
 * an otherwise idle machine. */
static int whole_limit_is_available_again(void)
{
    uint64_t end = now_ms() + 1000;

    for (int tries = 0; tries < 500 || now_ms() < end; tries++) {
        if (ledger_charge(&ledger, 0, LIMIT) == 0) {
            ledger_refund(&ledger, 0, LIMIT);
            return 1;
        }
        usleep(1000);
    }
    return 0;
}

static void death_at_any_instruction_loses_nothing(void)
{
    struct scratch scratch = scratch_make(LIMIT);
    unsigned seed = sample_seed();
    int lost = 0;

    CHECK("the survivor has a slot", join(&scratch) == 0);
    for (enum section section = CHARGE; section < SECTIONS; section++) {
        unsigned stride = sections[section].stride * check_one_of();
        unsigned first = seed % stride;
        unsigned steps = first;

        while (kill_at(section, &scratch, steps) && steps < 20000) {
            /* Normally reaping is rate-limited by time; here each death is reaped at once. */
            region.usage->scanned_ns = 0;
            lost += !whole_limit_is_available_again();
            steps += stride;
        }
        printf("%s: killed at instructions %u to %u by %u\n", sections[section].name, first, steps,
               stride);
        CHECK("the section has instructions", steps > 2);
    }
    CHECK_EQUAL("deaths after which something was lost", lost, 0);
    CHECK("slots are used again", region.usage->high_water <= 4);
    slots_release(&region);
    scratch_remove(&scratch);
}

struct arena {
    int64_t held;
    uint64_t over;
    uint64_t stuck;
    uint64_t rounds;
    int stop;
};

static void neighbour(const struct scratch *scratch, struct arena *arena)
{
    unsigned seed = (unsigned) getpid();
    struct sched_param idle = {0};
    cpu_set_t all;

    memset(&all, 0xff, sizeof(all));
    sched_setaffinity(0, sizeof(all), &all);
    sched_setscheduler(0, SCHED_IDLE, &idle); /* so that stepping is not slowed down by us */
    if (join(scratch) != 0)
        _exit(1);
    while (!__atomic_load_n(&arena->stop, __ATOMIC_RELAXED)) {
        uint64_t bytes = 1 + (uint64_t) rand_r(&seed) % (LIMIT / 3);
        uint64_t before = now_ms();
        int charged = ledger_charge(&ledger, 0, bytes) == 0;

        /* A charge waits a millisecond at most; five seconds is not a slow machine. */
        if (now_ms() - before > 5000)
            __atomic_add_fetch(&arena->stuck, 1, __ATOMIC_SEQ_CST);
        if (charged) {
            if (__atomic_add_fetch(&arena->held, (int64_t) bytes, __ATOMIC_SEQ_CST) >
                (int64_t) LIMIT)
                __atomic_add_fetch(&arena->over, 1, __ATOMIC_SEQ_CST);
            __atomic_sub_fetch(&arena->held, (int64_t) bytes, __ATOMIC_SEQ_CST);
            ledger_refund(&ledger, 0, bytes);
        }
        __atomic_add_fetch(&arena->rounds, 1, __ATOMIC_RELAXED);
    }
    _exit(0);
}

static void neighbours_of_killed_processes_stay_exact_and_never_wait(void)
{
    struct scratch scratch = scratch_make(LIMIT);
    struct arena *arena =
        mmap(NULL, sizeof(*arena), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t neighbours[NEIGHBOURS];
    unsigned deaths = 0;

    for (int i = 0; i < NEIGHBOURS; i++) {
        neighbours[i] = fork();
        if (neighbours[i] == 0)
            neighbour(&scratch, arena);
    }
    for (unsigned steps = 0; steps < 160; steps += 2)
        for (enum section section = CHARGE; section <= CHARGE_REFUSED; section++)
            deaths += (unsigned) kill_at(section, &scratch, steps);
    __atomic_store_n(&arena->stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < NEIGHBOURS; i++) {
        int status;

        waitpid(neighbours[i], &status, 0);
        CHECK("the neighbour ended by itself", WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    printf("%u deaths beside %d neighbours, %" PRIu64 " rounds\n", deaths, NEIGHBOURS,
           arena->rounds);
    CHECK("many died", deaths > 50);
    CHECK("the neighbours went on", arena->rounds > 1000);
    CHECK_EQUAL("over the limit", arena->over, 0);
    CHECK_EQUAL("waited", arena->stuck, 0);
    CHECK("a slot for the survivor", join(&scratch) == 0);
    CHECK("everything is back", whole_limit_is_available_again());
    slots_release(&region);
    scratch_remove(&scratch);
}

int main(void)
{
    stay_on_one_processor();
    death_at_any_instruction_loses_nothing();
    neighbours_of_killed_processes_stay_exact_and_never_wait();
    return check_end();
}
