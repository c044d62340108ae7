/* SPDX-License-Identifier: Apache-2.0 */
/* turns.c -- synchronisation of threads on the virtual clock; see turns.h. */
#include "turns.h"
#include "kernel.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define AHEAD_NS 10000

/* In real time. */
#define POLL_NS   UINT64_C(5000000)     /* period at which waiting threads check the slowest one */
#define AWAY_NS   UINT64_C(40000000)    /* after so much sleep a thread counts as away */
#define STUCK_NS  UINT64_C(200000000)   /* after so much CPU time without reading the clock, */
#define FORCED_NS UINT64_C(30000000000) /* or so long without progress, the others go on */

static struct virtualclock *shared;
static pthread_key_t leaving;

static __thread struct virtualclock_thread *own;
static __thread uint64_t now_ns;   /* this thread's; own->at_ns follows */
static __thread uint64_t limit_ns; /* until then it need not check the others */
static __thread int mutexes;       /* number that it holds */

static void leave(void *thread)
{
    __atomic_store_n(&((struct virtualclock_thread *) thread)->thread, 0, __ATOMIC_RELEASE);
}

static void forget_in_child(void)
{
    own = NULL;
    mutexes = 0;
}

void turns_begin(struct virtualclock *clock)
{
    shared = clock;
    pthread_key_create(&leaving, leave);
    pthread_atfork(NULL, NULL, forget_in_child);
}

void turns_leave(void)
{
    if (own)
        leave(own);
}

static uint32_t mode(void)
{
    return shared ? __atomic_load_n(&shared->mode, __ATOMIC_ACQUIRE) : VIRTUALCLOCK_REAL;
}

static bool take(struct virtualclock_thread *entry, uint32_t thread)
{
    uint32_t none = 0;

    return __atomic_compare_exchange_n(&entry->thread, &none, thread, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

static uint64_t frontier(void)
{
    return __atomic_load_n(&shared->frontier_ns, __ATOMIC_ACQUIRE);
}

/* Register the calling thread, at the others' time. False: the table is full, and time is real. */
static bool join(void)
{
    uint32_t thread = (uint32_t) syscall(SYS_gettid);

    for (size_t i = 0; i < VIRTUALCLOCK_THREADS; i++) {
        struct virtualclock_thread *entry = &shared->threads[i];
        if (!take(entry, thread))
            continue;
        now_ns = frontier() ? frontier() : kernel_now_ns();
        limit_ns = 0;
        entry->process = (uint32_t) getpid();
        __atomic_store_n(&entry->at_ns, now_ns, __ATOMIC_RELEASE);
        __atomic_store_n(&entry->state, VIRTUALCLOCK_RUNS, __ATOMIC_RELEASE);
        own = entry;
        pthread_setspecific(leaving, entry);
        return true;
    }
    return false;
}

/* The time of the slowest other thread, which *entry* must not leave behind; or of the slowest one
 * that waits itself. */
static uint64_t slowest_but(const struct virtualclock_thread *entry,
                            struct virtualclock_thread **slowest, bool waiting)
{
    uint64_t least = UINT64_MAX;

    for (size_t i = 0; i < VIRTUALCLOCK_THREADS; i++) {
        struct virtualclock_thread *other = &shared->threads[i];
        uint32_t state = __atomic_load_n(&other->state, __ATOMIC_ACQUIRE);
        uint64_t at;

        if (other == entry || !__atomic_load_n(&other->thread, __ATOMIC_ACQUIRE) ||
            state == VIRTUALCLOCK_AWAY || (waiting && state != VIRTUALCLOCK_WAITS))
            continue;
        at = __atomic_load_n(&other->at_ns, __ATOMIC_ACQUIRE);
        if (at >= least)
            continue;
        least = at;
        if (slowest)
            *slowest = other;
    }
    return least;
}

static bool may_go(const struct virtualclock_thread *entry, uint64_t at,
                   struct virtualclock_thread **slowest)
{
    uint64_t least = slowest_but(entry, slowest, false);

    return least == UINT64_MAX || at <= least + AHEAD_NS;
}

static void wake(struct virtualclock_thread *entry)
{
    __atomic_add_fetch(&entry->wakes, 1, __ATOMIC_ACQ_REL);
    syscall(SYS_futex, &entry->wakes, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void wake_ready_threads(void)
{
    for (size_t i = 0; i < VIRTUALCLOCK_THREADS; i++) {
        struct virtualclock_thread *other = &shared->threads[i];

        if (other != own && __atomic_load_n(&other->thread, __ATOMIC_ACQUIRE) &&
            __atomic_load_n(&other->state, __ATOMIC_ACQUIRE) == VIRTUALCLOCK_WAITS &&
            may_go(other, __atomic_load_n(&other->at_ns, __ATOMIC_ACQUIRE), NULL))
            wake(other);
    }
}

/* Publish that the thread has reached now_ns (a sleeping thread publishes its future wake-up). */
static void arrive(void)
{
    uint64_t furthest = frontier();

    __atomic_store_n(&own->at_ns, now_ns, __ATOMIC_RELEASE);
    while (furthest < now_ns &&
           !__atomic_compare_exchange_n(&shared->frontier_ns, &furthest, now_ns, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        continue;
}

static uint64_t ran_ns_of(const struct virtualclock_thread *entry)
{
    return kernel_ran_ns(entry->process, entry->thread);
}

/* Check the thread that all wait for: is it dead, stopped, or asleep on something but the clock? */
static void check_thread(struct virtualclock_thread *entry, bool long_asleep)
{
    uint32_t state = __atomic_load_n(&entry->state, __ATOMIC_ACQUIRE);
    char seen = kernel_state_of(entry->process, entry->thread);

    if (seen == 'X' || seen == 'Z')
        leave(entry);
    else if (seen == 'T' || seen == 't' ||
             (state == VIRTUALCLOCK_RUNS && seen == 'S' && long_asleep))
        __atomic_compare_exchange_n(&entry->state, &state, VIRTUALCLOCK_AWAY, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    else if (state == VIRTUALCLOCK_WAITS)
        wake(entry);
}

/* The thread that all wait for; since when, and its time and CPU time then. */
struct awaited {
    struct virtualclock_thread *thread;
    uint64_t at_ns;
    uint64_t since_ns;
    uint64_t ran_ns;
};

static bool is_where_it_was(const struct awaited *awaited, const struct virtualclock_thread *thread)
{
    return awaited->thread == thread &&
           awaited->at_ns == __atomic_load_n(&thread->at_ns, __ATOMIC_ACQUIRE);
}

static void sleep_until_woken(uint32_t wakes)
{
    struct timespec timeout = {0, POLL_NS};

    syscall(SYS_futex, &own->wakes, FUTEX_WAIT, wakes, &timeout, NULL, 0);
}

static bool may_go_now(struct virtualclock_thread **slowest)
{
    return mode() != VIRTUALCLOCK_GATHER && may_go(own, now_ns, slowest);
}

/* A thread that merely lacks a processor is waited for, but not one that spins: it may be waiting
 * for this one. Of the waiting threads only the next goes on: others may be asleep until much
 * later. */
static bool must_go(const struct awaited *awaited)
{
    if (mode() == VIRTUALCLOCK_GATHER || now_ns > slowest_but(own, NULL, true) ||
        (ran_ns_of(awaited->thread) < awaited->ran_ns + STUCK_NS &&
         kernel_now_ns() < awaited->since_ns + FORCED_NS))
        return false;
    __atomic_add_fetch(&shared->forced, 1, __ATOMIC_RELAXED);
    return true;
}

/* A thread that was away continues at the others' time. */
static void come_back(void)
{
    if (__atomic_load_n(&own->state, __ATOMIC_ACQUIRE) != VIRTUALCLOCK_AWAY)
        return;
    if (now_ns < frontier())
        now_ns = frontier();
    arrive();
    __atomic_store_n(&own->state, VIRTUALCLOCK_RUNS, __ATOMIC_RELEASE);
}

/* Wait until now_ns is not too far ahead of the others. */
static void wait_for_others(void)
{
    struct virtualclock_thread *slowest = NULL;
    struct awaited awaited = {0};

    __atomic_store_n(&own->at_ns, now_ns, __ATOMIC_RELEASE);
    __atomic_store_n(&own->state, VIRTUALCLOCK_WAITS, __ATOMIC_RELEASE);
    wake_ready_threads();
    for (;;) {
        uint32_t wakes = __atomic_load_n(&own->wakes, __ATOMIC_ACQUIRE);

        if (may_go_now(&slowest))
            break;
        sleep_until_woken(wakes);
        if (!slowest)
            continue;
        if (!is_where_it_was(&awaited, slowest)) {
            awaited = (struct awaited) {slowest, __atomic_load_n(&slowest->at_ns, __ATOMIC_ACQUIRE),
                                        kernel_now_ns(), ran_ns_of(slowest)};
        } else if (kernel_now_ns() > awaited.since_ns + POLL_NS) {
            check_thread(slowest, kernel_now_ns() > awaited.since_ns + AWAY_NS);
            if (must_go(&awaited))
                break;
        }
    }
    come_back();
    __atomic_store_n(&own->state, VIRTUALCLOCK_RUNS, __ATOMIC_RELEASE);
    arrive();
    limit_ns = now_ns + AHEAD_NS;
}

/* No thread reads a time that is earlier than one that any thread has read. */
static void keep_pace(void)
{
    if (now_ns < frontier())
        now_ns = frontier();
    arrive();
    if (now_ns >= limit_ns && mutexes == 0)
        wait_for_others();
}

bool turns_take_part(void)
{
    if (mode() == VIRTUALCLOCK_REAL || (!own && !join()))
        return false;
    come_back();
    return true;
}

uint64_t turns_now(void)
{
    return now_ns;
}

void turns_pass(uint64_t ns)
{
    now_ns += ns;
    keep_pace();
}

void turns_sleep_until(uint64_t ns)
{
    now_ns = ns;
    wait_for_others();
}

static bool is_called(const struct virtualclock_thread *entry, const void *name)
{
    return __atomic_load_n(&entry->thread, __ATOMIC_ACQUIRE) &&
           entry->process == (uint32_t) getpid() &&
           __atomic_load_n(&entry->waits_for, __ATOMIC_ACQUIRE) == (uintptr_t) name;
}

void turns_wait_for_call(const void *name)
{
    __atomic_store_n(&own->waits_for, (uintptr_t) name, __ATOMIC_RELEASE);
    __atomic_store_n(&own->state, VIRTUALCLOCK_AWAY, __ATOMIC_RELEASE);
    wake_ready_threads();
}

/* The called threads count as running at once, even before the computer schedules them. */
void turns_call(const void *name)
{
    for (size_t i = 0; shared && i < VIRTUALCLOCK_THREADS; i++) {
        struct virtualclock_thread *other = &shared->threads[i];

        if (!is_called(other, name))
            continue;
        __atomic_store_n(&other->waits_for, 0, __ATOMIC_RELEASE);
        __atomic_store_n(&other->at_ns, frontier(), __ATOMIC_RELEASE);
        __atomic_store_n(&other->state, VIRTUALCLOCK_RUNS, __ATOMIC_RELEASE);
    }
}

void turns_return(void)
{
    uint64_t at = __atomic_load_n(&own->at_ns, __ATOMIC_ACQUIRE);

    __atomic_store_n(&own->waits_for, 0, __ATOMIC_RELEASE);
    come_back();
    if (now_ns < at)
        now_ns = at;
    keep_pace();
}

void turns_lock(void)
{
    mutexes++;
}

void turns_unlock(void)
{
    mutexes -= mutexes > 0;
    if (own && mutexes == 0 && now_ns > limit_ns && mode() == VIRTUALCLOCK_GOES)
        wait_for_others();
}
