/* SPDX-License-Identifier: Apache-2.0 */
/* test_blocks.c -- the first and last allocation in a block are detected, with concurrent threads;
 * and what is recorded in a block is found again. */
#include "core/blocks.h"
#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define BASE    UINT64_C(0x7f0000000000)
#define THREADS 4
#define BLOCKS  700 /* more than there are lists */
#define ROUNDS  200

static void first_and_last_allocation_in_a_block_are_reported(void)
{
    CHECK("the first", blocks_enter(BASE) == 1);
    CHECK("its neighbour", blocks_enter(BASE + 512) == 0);
    CHECK("the last bytes of it", blocks_enter(BASE + BLOCKS_BYTES - 512) == 0);
    CHECK("the next block", blocks_enter(BASE + BLOCKS_BYTES) == 1);
    CHECK("one of several goes", !blocks_leave(BASE));
    CHECK("another one", !blocks_leave(BASE + 512));
    CHECK("the last one", blocks_leave(BASE + BLOCKS_BYTES - 512));
    CHECK("again the first", blocks_enter(BASE + 1024) == 1);
    CHECK("and last", blocks_leave(BASE + 1024));
    CHECK("the next one's", blocks_leave(BASE + BLOCKS_BYTES));
    CHECK("one that is not known", !blocks_leave(BASE / 2));
}

static void forked_child_starts_empty(void)
{
    int status = 0;
    pid_t child;

    blocks_enter(BASE);
    child = fork();
    if (child == 0) {
        blocks_after_fork();
        _exit(blocks_enter(BASE) == 1 && blocks_leave(BASE) ? 0 : 1);
    }
    CHECK("it has the first and the last", waitpid(child, &status, 0) == child && status == 0);
    CHECK("the parent has its own", blocks_leave(BASE));
}

static const struct blocks_owner first_owner = {&first_owner, 7, 3};
static const struct blocks_owner other_owner = {&other_owner, 7, 3};

static enum blocks_recorded record(uint64_t offset, uint64_t bytes,
                                   const struct blocks_owner *owner)
{
    int mixed;

    return blocks_record(BASE + offset, bytes, owner, &mixed);
}

static void recorded_allocation_is_taken_once(void)
{
    struct allocation taken = {0};

    CHECK("the first", record(4096, 1024, &first_owner) == BLOCKS_FIRST);
    CHECK("its neighbour", record(4096 + 1024, 65536, &first_owner) == BLOCKS_SHARED);
    CHECK("found", blocks_find(BASE + 4096, &taken) == 1);
    CHECK("taken", blocks_take(BASE + 4096, &taken) == 1);
    CHECK_EQUAL("its address", taken.address, BASE + 4096);
    CHECK_EQUAL("its bytes", taken.bytes, 1024);
    CHECK("its owner", taken.owner == &first_owner);
    CHECK_EQUAL("the owner's generation", taken.life, 7);
    CHECK_EQUAL("its device", taken.device, 3);
    CHECK("it is in a block", taken.in_block && taken.recorded && !taken.link);
    CHECK("once", blocks_take(BASE + 4096, &taken) == 0);
    CHECK("not by an address inside", blocks_take(BASE + 4096 + 1536, &taken) == 0);
    CHECK("nor by an odd one", blocks_take(BASE + 4096 + 1025, &taken) == 0);
    CHECK("one stays in the block", !blocks_leave(BASE + 4096));
    CHECK("the neighbour", blocks_take(BASE + 4096 + 1024, &taken) == 1);
    CHECK_EQUAL("its bytes, which end in another word", taken.bytes, 65536);
    CHECK("the last", blocks_leave(BASE + 4096 + 1024));
}

static void some_belong_into_the_table(void)
{
    struct allocation taken;
    int mixed = 0;

    CHECK("larger", record(0, 65536 + 512, &first_owner) == BLOCKS_NOT_RECORDED);
    CHECK("no bytes", record(0, 0, &first_owner) == BLOCKS_NOT_RECORDED);
    CHECK("part of a unit", record(0, 100, &first_owner) == BLOCKS_NOT_RECORDED);
    CHECK("at an odd address", record(256, 512, &first_owner) == BLOCKS_NOT_RECORDED);
    CHECK("in two blocks", record(BLOCKS_BYTES - 512, 1024, &first_owner) == BLOCKS_NOT_RECORDED);
    CHECK("up to the end", record(BLOCKS_BYTES - 512, 512, &first_owner) == BLOCKS_FIRST);
    CHECK("of another owner", record(0, 512, &other_owner) == BLOCKS_NOT_RECORDED);
    CHECK("which enters the block", blocks_enter(BASE) == 0);
    blocks_record(BASE + 512, 512, &first_owner, &mixed);
    CHECK("one may be in the table", mixed);
    CHECK("two leave", blocks_take(BASE + 512, &taken) && !blocks_leave(BASE + 512));
    CHECK("what is taken still counts", blocks_take(BASE + BLOCKS_BYTES - 512, &taken) == 1);
    CHECK("so another is not the last", !blocks_leave(BASE));
    CHECK("nor has the block another owner", record(0, 512, &other_owner) == BLOCKS_NOT_RECORDED);
    CHECK("the last", blocks_leave(BASE + BLOCKS_BYTES - 512));
    CHECK("then it has", record(0, 512, &other_owner) == BLOCKS_FIRST);
    CHECK("and goes", blocks_take(BASE, &taken) && blocks_leave(BASE));
}

static void refused_free_puts_it_back(void)
{
    struct allocation taken;

    record(0, 2048, &first_owner);
    CHECK("taken", blocks_take(BASE, &taken) == 1);
    blocks_put_back(&taken);
    CHECK("taken again", blocks_take(BASE, &taken) == 1);
    CHECK_EQUAL("its bytes", taken.bytes, 2048);
    CHECK("it was counted once", blocks_leave(BASE));
}

static void address_of_an_unseen_free_counts_once(void)
{
    struct allocation taken;

    CHECK("the first", record(0, 4096, &first_owner) == BLOCKS_FIRST);
    CHECK("in its place", record(0, 2048, &first_owner) == BLOCKS_SHARED);
    CHECK("one that ends where it ended", record(1536, 512, &first_owner) == BLOCKS_SHARED);
    CHECK("the former", blocks_take(BASE, &taken) == 1 && !blocks_leave(BASE));
    CHECK("the latter", blocks_take(BASE + 1536, &taken) == 1 && blocks_leave(BASE));
    CHECK("no other", !blocks_take(BASE, &taken));
}

static void note(const struct allocation *gone, void *sum)
{
    *(uint64_t *) sum += gone->bytes;
}

static uint64_t bytes_of(const void *owner)
{
    uint64_t sum = 0;

    blocks_take_owned(owner, note, &sum);
    return sum;
}

static void all_of_an_owner_are_taken(void)
{
    struct allocation back = {.address = BASE, .owner = &first_owner, .life = 8};

    record(0, 512, &first_owner);
    record(BLOCKS_BYTES, 1024, &first_owner);
    record(2 * BLOCKS_BYTES, 2048, &other_owner);
    CHECK("none of another generation", !blocks_take_back(&back));
    CHECK_EQUAL("two blocks", bytes_of(&first_owner), 1536);
    CHECK_EQUAL("once", bytes_of(&first_owner), 0);
    CHECK_EQUAL("the other's", bytes_of(&other_owner), 2048);
    for (uint64_t block = 0; block < 3; block++)
        CHECK("counted until it leaves", blocks_leave(BASE + block * BLOCKS_BYTES));
}

/* Random sizes at random places of a block, compared with a plain list of them. */
static void records_agree_with_a_list(void)
{
    static uint64_t sizes[BLOCKS_BYTES / 512]; /* by unit; 0: none begins there */
    struct allocation taken;
    unsigned seed = 1, live = 0;
    int agree = 1;

    for (int step = 0; step < 200000; step++) {
        unsigned unit = (unsigned) rand_r(&seed) % 4096, end = unit;
        uint64_t bytes = 512 * (1 + (uint64_t) rand_r(&seed) % 128);

        if (sizes[unit]) {
            agree &= blocks_take(BASE + 512 * unit, &taken) && taken.bytes == sizes[unit];
            agree &= blocks_leave(BASE) == (--live == 0);
            sizes[unit] = 0;
            continue;
        }
        /* What begins here must end before the next one, and after the last. */
        for (unsigned before = unit; before-- && unit - before < 128;)
            if (sizes[before] > 512 * (unit - before))
                end = UINT32_MAX;
        while (end < 4096 && end < unit + bytes / 512 && !sizes[end])
            end++;
        if (end != unit + bytes / 512) {
            agree &= !blocks_take(BASE + 512 * unit, &taken);
            continue;
        }
        agree &= record(512 * unit, bytes, &first_owner) == (live++ ? BLOCKS_SHARED : BLOCKS_FIRST);
        sizes[unit] = bytes;
    }
    CHECK("every step", agree);
    CHECK("some are left", live > 10);
    bytes_of(&first_owner);
    for (; live > 1; live--)
        agree &= !blocks_leave(BASE);
    CHECK("and leave", agree && blocks_leave(BASE));
}

static int64_t charged; /* blocks */

/* One thread of two has its allocations recorded. */
static int enter(uint64_t address)
{
    int mixed;

    return address / 512 % 2 ? blocks_record(address, 512, &first_owner, &mixed) == BLOCKS_FIRST
                             : blocks_enter(address);
}

static int leave(uint64_t address)
{
    struct allocation taken;

    if (address / 512 % 2 && !blocks_take(address, &taken))
        return 0;
    return blocks_leave(address);
}

/* Each thread repeatedly enters and leaves every block, as charge.c does. */
static void *come_and_go(void *argument)
{
    uint64_t place = 512 * (uint64_t) (uintptr_t) argument;

    for (int round = 0; round < ROUNDS; round++) {
        for (uint64_t block = 0; block < BLOCKS; block++) {
            __atomic_add_fetch(&charged, 1, __ATOMIC_SEQ_CST);
            if (!enter(BASE + block * BLOCKS_BYTES + place))
                __atomic_sub_fetch(&charged, 1, __ATOMIC_SEQ_CST);
        }
        if (__atomic_load_n(&charged, __ATOMIC_SEQ_CST) <
            BLOCKS) /* this thread is in all of them */
            return "less is charged than is there";
        for (uint64_t block = 0; block < BLOCKS; block++)
            if (leave(BASE + block * BLOCKS_BYTES + place))
                __atomic_sub_fetch(&charged, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void only_occupied_blocks_are_charged(void)
{
    pthread_t threads[THREADS];
    void *wrong;

    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, come_and_go, (void *) i);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &wrong);
        CHECK(wrong ? (const char *) wrong : "enough was charged", !wrong);
    }
    CHECK_EQUAL("nothing is charged at the end", (uint64_t) charged, 0);
}

int main(void)
{
    first_and_last_allocation_in_a_block_are_reported();
    forked_child_starts_empty();
    recorded_allocation_is_taken_once();
    some_belong_into_the_table();
    refused_free_puts_it_back();
    address_of_an_unseen_free_counts_once();
    all_of_an_owner_are_taken();
    records_agree_with_a_list();
    only_occupied_blocks_are_charged();
    return check_end();
}
