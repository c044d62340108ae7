/* SPDX-License-Identifier: Apache-2.0 */
/* test_ledger.c -- the ledger's sums: exact, full use of the limit, never exceeded concurrently. */
#include "check.h"
#include "core/compiler.h"
#include "core/ledger.h"
#include "scratch_region.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MIB (UINT64_C(1) << 20)

#ifdef __SANITIZE_THREAD__
#define STEPS 1500 /* of each thread; a tenfold slowdown prolongs contention far more */
#define MUCH  700
#define DUELS 300
#else
#define STEPS 20000
#define MUCH  10000
#define DUELS 3000
#endif

static struct region region;
static struct ledger ledger = {.region = &region, .generation = 1};

static void join(const struct scratch *scratch, uint64_t limit)
{
    struct region_reason reason;

    if (scratch_open(scratch, &region, &reason) || slots_claim(&region, 0, &reason)) {
        fprintf(stderr, "%s\n", reason.text);
        exit(2);
    }
    ledger.limit[0] = limit;
}

static void *shared(size_t size)
{
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void charges_add_up_to_the_limit_and_no_further(void)
{
    struct scratch scratch = scratch_make(0);

    join(&scratch, 10 * MIB);
    CHECK_EQUAL("all but one byte", ledger_charge(&ledger, 0, 10 * MIB - 1), 0);
    CHECK_EQUAL("the last byte", ledger_charge(&ledger, 0, 1), 0);
    CHECK_EQUAL("no further", ledger_charge(&ledger, 0, 1), (uint64_t) -ENOMEM);
    CHECK_EQUAL("nor enormous", ledger_charge(&ledger, 0, UINT64_MAX), (uint64_t) -ENOMEM);
    CHECK_EQUAL("used", ledger_used(&ledger, 0), 10 * MIB);
    CHECK_EQUAL("refusals are counted", region.usage->refused[0], 2);
    ledger_refund(&ledger, 0, 4 * MIB);
    CHECK_EQUAL("what came back", ledger_charge(&ledger, 0, 4 * MIB), 0);
    CHECK_EQUAL("other devices are their own", ledger_used(&ledger, 1), 0);
    ledger.limit[0] = 2 * MIB;
    CHECK_EQUAL("a lowered limit refuses", ledger_charge(&ledger, 0, 512), (uint64_t) -ENOMEM);
    ledger_refund(&ledger, 0, 9 * MIB);
    CHECK_EQUAL("until there is room", ledger_charge(&ledger, 0, 512), 0);
    region.usage->orphaned[0] = 2 * MIB;
    CHECK_EQUAL("orphaned bytes count", ledger_charge(&ledger, 0, 512), (uint64_t) -ENOMEM);
    slots_release(&region);
    CHECK_EQUAL("a slot given back holds nothing", ledger_used(&ledger, 0), 2 * MIB);
    scratch_remove(&scratch);
}

static void node_side_usage_counts_in_every_sum(void)
{
    struct scratch scratch = scratch_make(0);
    uint64_t extra[REGION_DEVICES] = {4 * MIB};

    join(&scratch, 10 * MIB);
    CHECK_EQUAL("nothing was measured", region.extra_total[0], 0);
    region.extra_total = extra;
    CHECK_EQUAL("beyond what is left", ledger_charge(&ledger, 0, 6 * MIB + 1), (uint64_t) -ENOMEM);
    CHECK_EQUAL("what is left", ledger_charge(&ledger, 0, 6 * MIB), 0);
    CHECK_EQUAL("used", ledger_used(&ledger, 0), 10 * MIB);
    ledger_refund(&ledger, 0, 6 * MIB);
    extra[0] = UINT64_MAX - MIB;
    CHECK_EQUAL("nonsense refuses", ledger_charge(&ledger, 0, 2 * MIB), (uint64_t) -ENOMEM);
    slots_release(&region);
    scratch_remove(&scratch);
}

/* Lock a slot as another process does: reaping leaves it alone. */
static int hold_slot(unsigned slot)
{
    struct flock lock = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = USAGE_LOCK_SLOT + (off_t) slot,
                         .l_len = 1};
    int fd = open(region.usage_path, O_RDWR | O_CLOEXEC);

    CHECK_EQUAL("the slot is held", fcntl(fd, F_OFD_SETLK, &lock), 0);
    return fd;
}

static void undecided_charges_never_restart_a_sum(void)
{
    struct scratch scratch = scratch_make(0);
    uint64_t most = UINT64_C(2048) << LEDGER_PENDING_SHIFT;
    int other;

    join(&scratch, 10 * MIB);
    other = hold_slot(1);
    region.usage->high_water = 2;
    region.usage->charged[0][1] = UINT64_MAX; /* with our charge 4096 of them, plus the bytes */
    CHECK_EQUAL("4097 in all", ledger_charge(&ledger, 0, 1), (uint64_t) -ENOMEM);
    region.usage->charged[0][1] = 10 * MIB;
    region.words[0] = region.usage->charged[0][0] = most - LEDGER_PENDING;
    CHECK_EQUAL("many threads of one process", ledger_charge(&ledger, 0, 1), (uint64_t) -ENOMEM);
    CHECK_EQUAL("its word is as it was", region.usage->charged[0][0], most - LEDGER_PENDING);
    region.words[0] = most;
    CHECK_EQUAL("half a word of them", ledger_charge(&ledger, 0, 1), (uint64_t) -ENOMEM);
    CHECK_EQUAL("is as it was", region.usage->charged[0][0], most);
    region.usage->charged[0][1] = 0;
    CHECK_EQUAL("what fits is still admitted", ledger_charge(&ledger, 0, 10 * MIB), 0);
    slots_release(&region);
    region.usage->charged[0][1] = 0;
    close(other);
    scratch_remove(&scratch);
}

static void *charge_while_cancelled(void *unused)
{
    (void) unused;
    pthread_cancel(pthread_self());
    ledger_charge(&ledger, 0, 1);
    return NULL;
}

/* Reaping opens a file, which is a cancellation point. */
static void cancelled_thread_leaves_no_charge(void)
{
    struct scratch scratch = scratch_make(0);
    pthread_t thread;

    join(&scratch, 10 * MIB);
    CHECK_EQUAL("all", ledger_charge(&ledger, 0, 10 * MIB), 0);
    region.usage->slots[5].pid = 1; /* dead, so there is something to open the file for */
    region.usage->high_water = 6;
    pthread_create(&thread, NULL, charge_while_cancelled, NULL);
    pthread_join(thread, NULL);
    CHECK_EQUAL("decided, and refused", region.usage->charged[0][region.slot], 10 * MIB);
    CHECK_EQUAL("the dead were looked for", region.usage->slots[5].pid, 0);
    slots_release(&region);
    scratch_remove(&scratch);
}

struct arena {
    int64_t held; /* bytes admitted to all live processes, by their own count */
    uint64_t over;
    uint64_t admitted;
    uint64_t refused;
    int ready;
};

static void hold(struct arena *arena, int64_t bytes, uint64_t limit)
{
    if (__atomic_add_fetch(&arena->held, bytes, __ATOMIC_SEQ_CST) > (int64_t) limit)
        __atomic_add_fetch(&arena->over, 1, __ATOMIC_SEQ_CST);
}

static void *hammer(void *argument)
{
    struct arena *arena = argument;
    unsigned seed = (unsigned) getpid() ^ (unsigned) (uintptr_t) &seed;
    uint64_t held[8] = {0};

    for (int step = 0; step < STEPS; step++) {
        unsigned i = (unsigned) rand_r(&seed) % 8;

        if (held[i]) {
            hold(arena, -(int64_t) held[i], ledger.limit[0]);
            ledger_refund(&ledger, 0, held[i]);
            held[i] = 0;
        } else {
            /* Half of them a block, which its process reserves when it frees it. */
            uint64_t bytes =
                rand_r(&seed) % 2 ? BLOCK_BYTES : 1 + (uint64_t) rand_r(&seed) % (8 * MIB);

            if (ledger_charge(&ledger, 0, bytes) == 0) {
                hold(arena, (int64_t) bytes, ledger.limit[0]);
                held[i] = bytes;
                __atomic_add_fetch(&arena->admitted, 1, __ATOMIC_RELAXED);
            } else {
                __atomic_add_fetch(&arena->refused, 1, __ATOMIC_RELAXED);
            }
        }
    }
    for (unsigned i = 0; i < 8; i++) {
        hold(arena, -(int64_t) held[i], ledger.limit[0]);
        ledger_refund(&ledger, 0, held[i]);
    }
    return NULL;
}

#define CROWDED (24 * MIB) /* too little even for one of the processes alone */

static void concurrent_charges_never_exceed_the_limit(void)
{
    struct scratch scratch = scratch_make(0);
    struct arena *arena = shared(sizeof(*arena));

    for (int process = 0; process < 16; process++) {
        if (fork() == 0) {
            pthread_t other;

            join(&scratch, CROWDED);
            pthread_create(&other, NULL, hammer, arena);
            hammer(arena);
            pthread_join(other, NULL);
            _exit(region_held(&region, 0, (unsigned) region.slot) == 0 ? 0 : 1);
        }
    }
    for (int process = 0; process < 16; process++) {
        int status;

        wait(&status);
        CHECK("its word is zero when all is refunded", WIFEXITED(status) && !WEXITSTATUS(status));
    }
    CHECK_EQUAL("never over", arena->over, 0);
    CHECK("much was admitted", arena->admitted > MUCH);
    CHECK("and much refused", arena->refused > MUCH);
    join(&scratch, CROWDED);
    CHECK_EQUAL("nothing is left", ledger_used(&ledger, 0), 0);
    CHECK_EQUAL("the whole limit is there again", ledger_charge(&ledger, 0, CROWDED), 0);
    slots_release(&region);
    scratch_remove(&scratch);
}

static uint64_t own_word(void)
{
    return region.usage->charged[0][region.slot];
}

/* What a process of its own answers that joins and then charges *bytes*. */
static int charge_elsewhere(const struct scratch *scratch, uint64_t bytes)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        int result;

        slots_after_fork(&region);
        join(scratch, 10 * MIB);
        result = ledger_charge(&ledger, 0, bytes);
        slots_release(&region);
        _exit(-result);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? -WEXITSTATUS(status) : 1;
}

static void freed_block_stays_reserved_until_another_process_needs_it(void)
{
    struct scratch scratch = scratch_make(0);
    int other;

    join(&scratch, 10 * MIB);
    CHECK_EQUAL("alone", ledger_charge(&ledger, 0, BLOCK_BYTES), 0);
    ledger_refund(&ledger, 0, BLOCK_BYTES);
    CHECK_EQUAL("nothing is reserved", own_word(), 0);
    other = hold_slot(1);
    region.usage->high_water = 2;
    CHECK_EQUAL("beside another", ledger_charge(&ledger, 0, BLOCK_BYTES), 0);
    CHECK_EQUAL("it counts", ledger_used(&ledger, 0), BLOCK_BYTES);
    ledger_refund(&ledger, 0, BLOCK_BYTES);
    CHECK_EQUAL("the freed one is reserved", own_word(), LEDGER_BLOCK + BLOCK_BYTES);
    CHECK_EQUAL("and not held", ledger_used(&ledger, 0), 0);
    CHECK_EQUAL("nor by its slot", region_held(&region, 0, (unsigned) region.slot), 0);
    for (int times = 0; times < 3; times++) {
        CHECK_EQUAL("again", ledger_charge(&ledger, 0, BLOCK_BYTES), 0);
        CHECK_EQUAL("held", ledger_used(&ledger, 0), BLOCK_BYTES);
        CHECK_EQUAL("the word is as it was", own_word(), LEDGER_BLOCK + BLOCK_BYTES);
        CHECK_EQUAL("the rest and no more", charge_elsewhere(&scratch, 8 * MIB + 1), -ENOMEM);
        ledger_refund(&ledger, 0, BLOCK_BYTES);
    }
    CHECK_EQUAL("others get all", charge_elsewhere(&scratch, 10 * MIB), 0);
    CHECK_EQUAL("by taking the block", region.blocks[region.slot][0] & BLOCK_STATE, BLOCK_TAKEN);
    CHECK_EQUAL("which is charged again", ledger_charge(&ledger, 0, BLOCK_BYTES), 0);
    CHECK_EQUAL("once", ledger_used(&ledger, 0), BLOCK_BYTES);
    ledger_refund(&ledger, 0, BLOCK_BYTES);
    CHECK_EQUAL("this process gets all, too", ledger_charge(&ledger, 0, 10 * MIB), 0);
    CHECK_EQUAL("no more", ledger_charge(&ledger, 0, BLOCK_BYTES), -ENOMEM);
    CHECK_EQUAL("used", ledger_used(&ledger, 0), 10 * MIB);
    ledger_refund(&ledger, 0, 10 * MIB);
    CHECK_EQUAL("nothing is left", ledger_used(&ledger, 0), 0);
    close(other);
    slots_release(&region);
    scratch_remove(&scratch);
}

#define CROWD 4

/* A process that has reserved a block, and does as it is bidden: it charges one, or ends. */
struct keeper {
    pid_t pid;
    int orders[2];
    int answers[2];
};

static void keep_a_block(const struct scratch *scratch, const struct keeper *keeper)
{
    char order;
    int result;

    slots_after_fork(&region);
    join(scratch, CROWD * BLOCK_BYTES);
    result = ledger_charge(&ledger, 0, BLOCK_BYTES);
    ledger_refund(&ledger, 0, BLOCK_BYTES);
    do
        if (write(keeper->answers[1], &result, sizeof(result)) != sizeof(result))
            break;
    while (read(keeper->orders[0], &order, 1) == 1 &&
           (result = ledger_charge(&ledger, 0, BLOCK_BYTES), 1));
    _exit(0);
}

static int answer_of(const struct keeper *keeper)
{
    int result = 1;

    CHECK_EQUAL("it answers", read(keeper->answers[0], &result, sizeof(result)), sizeof(result));
    return result;
}

static int charge_by(const struct keeper *keeper)
{
    CHECK_EQUAL("it is bidden", write(keeper->orders[1], "", 1), 1);
    return answer_of(keeper);
}

static void start_keepers(const struct scratch *scratch, struct keeper *keepers)
{
    for (int i = 0; i < CROWD; i++) {
        if (pipe2(keepers[i].orders, O_CLOEXEC) || pipe2(keepers[i].answers, O_CLOEXEC))
            exit(2);
        keepers[i].pid = fork();
        if (keepers[i].pid == 0)
            keep_a_block(scratch, &keepers[i]);
        CHECK_EQUAL("it had a block", answer_of(&keepers[i]), 0);
    }
}

static void end_keeper(struct keeper *keeper)
{
    kill(keeper->pid, SIGKILL);
    waitpid(keeper->pid, NULL, 0);
    for (int end = 0; end < 2; end++) {
        close(keeper->orders[end]);
        close(keeper->answers[end]);
    }
}

/* How many processes have a block reserved, as a sum counts it. */
static unsigned count_reserved(void)
{
    unsigned count = 0;

    for (unsigned slot = 0; slot < BLOCK_SLOTS; slot++)
        count += (region.usage->charged[0][slot] & LEDGER_BLOCK) &&
                 (region.blocks[slot][0] & BLOCK_STATE) == BLOCK_CACHED;
    return count;
}

static void reservations_of_a_crowd_refuse_nothing(void)
{
    struct scratch scratch = scratch_make(0);
    struct keeper keepers[CROWD];

    join(&scratch, CROWD * BLOCK_BYTES);
    start_keepers(&scratch, keepers);
    CHECK_EQUAL("they reserve the whole quota", count_reserved(), CROWD);
    CHECK_EQUAL("and hold nothing", ledger_used(&ledger, 0), 0);
    CHECK_EQUAL("so one gets all", ledger_charge(&ledger, 0, CROWD * BLOCK_BYTES), 0);
    CHECK_EQUAL("nothing is reserved", count_reserved(), 0);
    CHECK_EQUAL("and others get nothing", charge_by(&keepers[0]), -ENOMEM);
    ledger_refund(&ledger, 0, CROWD * BLOCK_BYTES);
    for (int i = 0; i < CROWD; i++)
        CHECK_EQUAL("until it is freed", charge_by(&keepers[i]), 0);
    CHECK_EQUAL("used", ledger_used(&ledger, 0), CROWD * BLOCK_BYTES);
    CHECK_EQUAL("no more", charge_by(&keepers[0]), -ENOMEM);
    for (int i = 0; i < CROWD; i++)
        end_keeper(&keepers[i]);
    slots_release(&region);
    scratch_remove(&scratch);
}

/* Their forked children keep the slots, so they are not reaped. */
static void reserved_blocks_of_killed_processes_refuse_nothing(void)
{
    struct scratch scratch = scratch_make(0);
    struct keeper keepers[CROWD];
    int children[CROWD];

    join(&scratch, CROWD * BLOCK_BYTES);
    start_keepers(&scratch, keepers);
    for (int i = 0; i < CROWD; i++) {
        end_keeper(&keepers[i]);
        children[i] = hold_slot((unsigned) i + 1);
    }
    CHECK_EQUAL("their blocks are still reserved", count_reserved(), CROWD);
    CHECK_EQUAL("and not held", ledger_used(&ledger, 0), 0);
    CHECK_EQUAL("all is charged", ledger_charge(&ledger, 0, CROWD * BLOCK_BYTES), 0);
    CHECK_EQUAL("once", ledger_charge(&ledger, 0, BLOCK_BYTES), -ENOMEM);
    CHECK_EQUAL("used", ledger_used(&ledger, 0), CROWD * BLOCK_BYTES);
    for (int i = 0; i < CROWD; i++)
        close(children[i]);
    slots_release(&region);
    scratch_remove(&scratch);
}

static void nothing_is_reserved_where_no_word_tells_of_it(void)
{
    struct scratch scratch = scratch_make(0);
    int other;

    join(&scratch, 10 * MIB);
    other = hold_slot(1);
    region.usage->high_water = 2;
    region.blocks = NULL; /* as in a file of layout 4 */
    CHECK_EQUAL("charged", ledger_charge(&ledger, 0, BLOCK_BYTES), 0);
    ledger_refund(&ledger, 0, BLOCK_BYTES);
    CHECK_EQUAL("and refunded", own_word(), 0);
    close(other);
    slots_release(&region);
    scratch_remove(&scratch);
}

static void reserved_block_counts_for_no_other_limit_or_measurement(void)
{
    struct scratch scratch = scratch_make(0);
    uint64_t extra[REGION_DEVICES] = {0};
    int other;

    join(&scratch, 10 * MIB);
    other = hold_slot(1);
    region.usage->high_water = 2;
    region.extra_total = extra;
    CHECK_EQUAL("charged", ledger_charge(&ledger, 0, BLOCK_BYTES), 0);
    ledger_refund(&ledger, 0, BLOCK_BYTES);
    CHECK("reserved", own_word() & LEDGER_BLOCK);
    extra[0] = 9 * MIB;
    CHECK_EQUAL("the node side's measure counts", ledger_charge(&ledger, 0, BLOCK_BYTES), -ENOMEM);
    extra[0] = 0;
    CHECK_EQUAL("only while it lasts", ledger_charge(&ledger, 0, BLOCK_BYTES), 0);
    CHECK_EQUAL("the rest", ledger_charge(&ledger, 0, 8 * MIB), 0);
    ledger.limit[0] = 9 * MIB;
    ledger_refund(&ledger, 0, BLOCK_BYTES);
    CHECK_EQUAL("above its limit nothing is reserved", own_word(), 8 * MIB);
    CHECK_EQUAL("so the limit holds", ledger_charge(&ledger, 0, BLOCK_BYTES), -ENOMEM);
    close(other);
    slots_release(&region);
    scratch_remove(&scratch);
}

struct duel {
    int arrived;
    int won;
};

static void fight(struct duel *duels)
{
    for (int i = 0; i < DUELS; i++) {
        int won;

        __atomic_add_fetch(&duels[i].arrived, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&duels[i].arrived, __ATOMIC_SEQ_CST) < 2)
            sched_yield();
        won = ledger_charge(&ledger, 0, 6 * MIB) == 0;
        __atomic_add_fetch(&duels[i].won, won, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&duels[i].arrived, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&duels[i].arrived, __ATOMIC_SEQ_CST) < 4)
            sched_yield();
        if (won)
            ledger_refund(&ledger, 0, 6 * MIB);
    }
}

static void one_of_two_conflicting_charges_is_admitted(void)
{
    struct scratch scratch = scratch_make(0);
    struct duel *duels = shared(DUELS * sizeof(*duels));
    pid_t other = fork();
    int neither = 0;
    int both = 0;

    join(&scratch, 10 * MIB);
    fight(duels);
    if (other == 0)
        _exit(0);
    waitpid(other, NULL, 0);
    for (int i = 0; i < DUELS; i++) {
        neither += duels[i].won == 0;
        both += duels[i].won == 2;
    }
    CHECK_EQUAL("both", both, 0);
    CHECK_EQUAL("neither", neither, 0);
    slots_release(&region);
    scratch_remove(&scratch);
}

int main(void)
{
    cancelled_thread_leaves_no_charge(); /* first: dead processes were not reaped yet */
    charges_add_up_to_the_limit_and_no_further();
    node_side_usage_counts_in_every_sum();
    undecided_charges_never_restart_a_sum();
    freed_block_stays_reserved_until_another_process_needs_it();
    reservations_of_a_crowd_refuse_nothing();
    reserved_blocks_of_killed_processes_refuse_nothing();
    nothing_is_reserved_where_no_word_tells_of_it();
    reserved_block_counts_for_no_other_limit_or_measurement();
    if (!check_emulated("thirty-two threads take minutes there"))
        concurrent_charges_never_exceed_the_limit();
    one_of_two_conflicting_charges_is_admitted();
    return check_end();
}
