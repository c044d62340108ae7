/* SPDX-License-Identifier: Apache-2.0 */
/* test_lock.c -- a lock that is taken out of order ends the process and names both locks. */
#include "check.h"
#include "core/lock.h"
#include "core/mutex.h"
#include "core/spin.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t init_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t contexts = PTHREAD_MUTEX_INITIALIZER;
static int pool, other_pool, marks;

static void down_the_order_and_again(void)
{
    for (int i = 0; i < 2; i++) {
        mutex_lock(&init_lock, LOCK_INIT);
        mutex_lock(&init_lock, LOCK_INIT); /* recursive */
        mutex_lock(&contexts, LOCK_CONTEXTS);
        spin_lock(&pool, LOCK_POOL);
        mutex_unlock(&contexts, LOCK_CONTEXTS); /* not the last one taken */
        spin_unlock(&pool, LOCK_POOL);
        mutex_unlock(&init_lock, LOCK_INIT);
        mutex_unlock(&init_lock, LOCK_INIT);
    }
}

static void attempt_in_any_order(void)
{
    spin_lock(&pool, LOCK_POOL);
    if (spin_try_lock(&marks, LOCK_MARKS) && !spin_try_lock(&marks, LOCK_MARKS))
        spin_unlock(&marks, LOCK_MARKS);
    spin_unlock(&pool, LOCK_POOL);
    mutex_lock(&init_lock, LOCK_INIT); /* nothing is held any more */
}

static void fork_with_one(void)
{
    spin_lock(&pool, LOCK_POOL);
    lock_after_fork();
    mutex_lock(&init_lock, LOCK_INIT);
}

static void up_the_order(void)
{
    spin_lock(&pool, LOCK_POOL);
    mutex_lock(&contexts, LOCK_CONTEXTS);
}

static void two_of_a_rank(void)
{
    spin_lock(&pool, LOCK_POOL);
    spin_lock(&other_pool, LOCK_POOL);
}

static void below_an_attempt(void)
{
    if (spin_try_lock(&marks, LOCK_MARKS))
        mutex_lock(&init_lock, LOCK_INIT);
}

static void release_without(void)
{
    spin_unlock(&pool, LOCK_POOL);
}

/* How *part* ended in a process of its own: 0 or a signal; *text* is what it said. */
static int run(void (*part)(void), char text[256])
{
    int ends[2], status = -1;
    ssize_t length;
    pid_t child;

    if (pipe(ends) != 0 || (child = fork()) < 0)
        return -1;
    if (child == 0) {
        dup2(ends[1], 2);
        part();
        _exit(0);
    }
    close(ends[1]);
    length = read(ends[0], text, 255);
    text[length > 0 ? length : 0] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void locks_are_taken_in_one_order(void)
{
    char text[256];

    CHECK_EQUAL("down the order", run(down_the_order_and_again, text), 0);
    CHECK_EQUAL("an attempt cannot block", run(attempt_in_any_order, text), 0);
    CHECK_EQUAL("a forked child holds nothing", run(fork_with_one, text), 0);
    CHECK_EQUAL("nothing was printed", text[0], 0);
}

static void other_orders_end_the_process(void)
{
    char text[256];

    CHECK_EQUAL("up the order", run(up_the_order, text), SIGABRT);
    CHECK("both are named", strstr(text, "one pool or store (pool_charge.c) is held, so registry "
                                         "of contexts (context.c) must not be taken"));
    CHECK_EQUAL("two of a rank", run(two_of_a_rank, text), SIGABRT);
    CHECK_EQUAL("a lock above an attempt", run(below_an_attempt, text), SIGABRT);
    CHECK_EQUAL("not held", run(release_without, text), SIGABRT);
    CHECK("it is named", strstr(text, "one pool or store (pool_charge.c) is released"));
}

int main(void)
{
    locks_are_taken_in_one_order();
    other_orders_end_the_process();
    return check_end();
}
