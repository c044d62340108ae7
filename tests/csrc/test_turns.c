/* SPDX-License-Identifier: Apache-2.0 */
/* test_turns.c -- threads of the virtual clock: which ones the others wait for, and for how long.
 */
#include "bench/share/kernel.h"
#include "bench/share/turns.h"
#include "check.h"

#include <unistd.h>

#define MS   UINT64_C(1000000)
#define LONG (10 * MS) /* this thread's lead over the others */

enum { PROCESS = 7 };

/* A fake kernel's answers about the thread that is behind; each query advances its time. */
struct kernel {
    char state;
    uint64_t step_ns; /* clock advance per reading */
    uint64_t runs_ns; /* CPU time per query of it */
    unsigned tries;   /* queries of its state until it catches up */
};

static struct kernel kernel;
static uint64_t real_ns, ran_ns;
static unsigned tries;

static struct virtualclock shared = {.mode = VIRTUALCLOCK_GOES, .frontier_ns = 1000 * MS};
static struct virtualclock_thread *const behind = &shared.threads[1];
static struct virtualclock_thread *const next = &shared.threads[2];

static void come_on(struct virtualclock_thread *thread)
{
    __atomic_store_n(&thread->at_ns, turns_now(), __ATOMIC_RELEASE);
}

uint64_t kernel_now_ns(void)
{
    return real_ns += kernel.step_ns;
}

uint64_t kernel_ran_ns(uint32_t process, uint32_t thread)
{
    (void) process;
    (void) thread;
    return ran_ns += kernel.runs_ns;
}

char kernel_state_of(uint32_t process, uint32_t thread)
{
    CHECK_EQUAL("the query is about that process", process, PROCESS);
    if (thread == next->thread) {
        come_on(next);
        return 'S';
    }
    CHECK_EQUAL("and the thread that is behind", thread, behind->thread);
    if (++tries == kernel.tries)
        come_on(behind);
    return kernel.state;
}

static struct virtualclock_thread one_at(uint32_t thread, uint64_t at_ns,
                                         enum virtualclock_state state)
{
    return (struct virtualclock_thread) {
        .thread = thread, .process = PROCESS, .state = state, .at_ns = at_ns};
}

/* Sleep while another thread makes no progress; returns the real time waited for it. */
static uint64_t sleep_ahead_of(enum virtualclock_state state, struct kernel says)
{
    uint64_t start = turns_now(), began = real_ns;

    *behind = one_at(2, start, state);
    shared.forced = 0;
    kernel = says;
    tries = 0;
    turns_sleep_until(start + LONG);
    CHECK_EQUAL("it slept for so long", turns_now(), start + LONG);
    *next = (struct virtualclock_thread) {0};
    return real_ns - began;
}

static void test_runnable_thread_without_processor_is_waited_for(void)
{
    sleep_ahead_of(VIRTUALCLOCK_RUNS,
                   (struct kernel) {.state = 'R', .step_ns = 100 * MS, .runs_ns = MS, .tries = 50});
    CHECK_EQUAL("for seconds", tries, 50);
    CHECK_EQUAL("until it comes on", shared.forced, 0);
}

static void test_spinning_thread_is_left_behind(void)
{
    uint64_t waited = sleep_ahead_of(
        VIRTUALCLOCK_RUNS, (struct kernel) {.state = 'R', .step_ns = 10 * MS, .runs_ns = 50 * MS});

    CHECK_EQUAL("it is left behind", shared.forced, 1);
    CHECK("after it has run for some time", tries > 2);
    CHECK("which is not long", waited < 1000 * MS);
}

static void test_no_thread_is_waited_for_forever(void)
{
    uint64_t waited =
        sleep_ahead_of(VIRTUALCLOCK_RUNS, (struct kernel) {.state = 'R', .step_ns = 1000 * MS});

    CHECK_EQUAL("it is left behind", shared.forced, 1);
    CHECK("after half a minute", waited > 29000 * MS);
}

static void test_thread_blocked_on_something_else_is_away(void)
{
    uint64_t waited =
        sleep_ahead_of(VIRTUALCLOCK_RUNS, (struct kernel) {.state = 'S', .step_ns = 10 * MS});

    CHECK_EQUAL("once it was seen to", behind->state, VIRTUALCLOCK_AWAY);
    CHECK("a moment later", waited > 40 * MS && tries > 1);
    CHECK_EQUAL("which is not forced", shared.forced, 0);
}

static void test_thread_sleeping_by_the_clock_is_not_away(void)
{
    sleep_ahead_of(VIRTUALCLOCK_WAITS,
                   (struct kernel) {.state = 'S', .step_ns = 100 * MS, .tries = 20});
    CHECK_EQUAL("it waits", behind->state, VIRTUALCLOCK_WAITS);
    CHECK("and is woken, in case of a lost wake-up", behind->wakes > 10);
    CHECK_EQUAL("but not left behind", shared.forced, 0);
}

static void test_stopped_thread_is_away_and_dead_thread_is_removed(void)
{
    sleep_ahead_of(VIRTUALCLOCK_RUNS, (struct kernel) {.state = 'T', .step_ns = 10 * MS});
    CHECK_EQUAL("stopped", behind->state, VIRTUALCLOCK_AWAY);
    CHECK_EQUAL("at once", tries, 1);
    sleep_ahead_of(VIRTUALCLOCK_RUNS, (struct kernel) {.state = 'X', .step_ns = 10 * MS});
    CHECK_EQUAL("dead", behind->thread, 0);
    CHECK_EQUAL("nothing forced", shared.forced, 0);
}

static void test_only_the_next_waiting_thread_leaves_one_behind(void)
{
    *next = one_at(3, turns_now() + LONG / 2, VIRTUALCLOCK_WAITS);
    sleep_ahead_of(
        VIRTUALCLOCK_RUNS,
        (struct kernel) {.state = 'R', .step_ns = 1000 * MS, .runs_ns = 100 * MS, .tries = 20});
    CHECK_EQUAL("this one is not", tries, 20);
    CHECK_EQUAL("so it waits", shared.forced, 0);
}

static void test_mutex_holder_waits_after_unlocking(void)
{
    uint64_t start = turns_now();

    *behind = one_at(2, start, VIRTUALCLOCK_RUNS);
    kernel = (struct kernel) {.state = 'R', .step_ns = 10 * MS, .tries = 3};
    tries = 0;
    turns_lock();
    turns_pass(LONG);
    CHECK_EQUAL("not meanwhile", tries, 0);
    turns_unlock();
    CHECK_EQUAL("but then", tries, 3);
}

static void test_thread_waiting_for_a_call_resumes_with_it(void)
{
    uint64_t start = turns_now();

    *behind = one_at(2, start, VIRTUALCLOCK_AWAY);
    behind->process = (uint32_t) getpid();
    behind->waits_for = (uintptr_t) &kernel;
    tries = 0;
    turns_pass(LONG);
    CHECK_EQUAL("it is not waited for", tries, 0);
    turns_call(&shared);
    CHECK_EQUAL("another call is not its", behind->state, VIRTUALCLOCK_AWAY);
    turns_call(&kernel);
    CHECK_EQUAL("its own is", behind->state, VIRTUALCLOCK_RUNS);
    CHECK_EQUAL("and it is where the caller is", behind->at_ns, turns_now());
    *behind = (struct virtualclock_thread) {0};
}

static void test_called_thread_continues_at_its_callers_time(void)
{
    uint64_t start = turns_now();

    turns_wait_for_call(&kernel);
    CHECK_EQUAL("it is away", shared.threads[0].state, VIRTUALCLOCK_AWAY);
    shared.frontier_ns = start + LONG;
    turns_call(&kernel);
    turns_return();
    CHECK_EQUAL("it runs", shared.threads[0].state, VIRTUALCLOCK_RUNS);
    CHECK_EQUAL("as late as the others", turns_now(), start + LONG);
    CHECK_EQUAL("and waits for nothing", shared.threads[0].waits_for, 0);
}

int main(void)
{
    turns_begin(&shared);
    CHECK("it takes part", turns_take_part() && shared.threads[0].thread);
    test_runnable_thread_without_processor_is_waited_for();
    test_spinning_thread_is_left_behind();
    test_no_thread_is_waited_for_forever();
    test_thread_blocked_on_something_else_is_away();
    test_thread_sleeping_by_the_clock_is_not_away();
    test_stopped_thread_is_away_and_dead_thread_is_removed();
    test_only_the_next_waiting_thread_leaves_one_behind();
    test_mutex_holder_waits_after_unlocking();
    test_thread_waiting_for_a_call_resumes_with_it();
    test_called_thread_continues_at_its_callers_time();
    return check_end();
}
