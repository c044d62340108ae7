/* SPDX-License-Identifier: Apache-2.0 */
/* test_blocks.c -- the first and last allocation in a block are detected, with concurrent threads.
 */
#include "core/blocks.h"
#include "check.h"

#include <pthread.h>
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

static int64_t charged; /* blocks */

/* Each thread repeatedly enters and leaves every block, as charge.c does. */
static void *come_and_go(void *argument)
{
    uint64_t place = 512 * (uint64_t) (uintptr_t) argument;

    for (int round = 0; round < ROUNDS; round++) {
        for (uint64_t block = 0; block < BLOCKS; block++) {
            __atomic_add_fetch(&charged, 1, __ATOMIC_SEQ_CST);
            if (!blocks_enter(BASE + block * BLOCKS_BYTES + place))
                __atomic_sub_fetch(&charged, 1, __ATOMIC_SEQ_CST);
        }
        if (__atomic_load_n(&charged, __ATOMIC_SEQ_CST) <
            BLOCKS) /* this thread is in all of them */
            return "less is charged than is there";
        for (uint64_t block = 0; block < BLOCKS; block++)
            if (blocks_leave(BASE + block * BLOCKS_BYTES + place))
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
    only_occupied_blocks_are_charged();
    return check_end();
}
