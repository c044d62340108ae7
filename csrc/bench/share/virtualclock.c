/* SPDX-License-Identifier: Apache-2.0 */
/* virtualclock.c -- LD_PRELOAD for benchmarks: CLOCK_MONOTONIC as if each thread had a processor.
 *
 * The shim, the simulated driver, the arbiter and the programs run unchanged; what they read as
 * CLOCK_MONOTONIC, and sleep by, is this. Computing takes no time but what reading the clock costs
 * (READ_NS, about what a call of a driver takes), a sleep takes as long as it was to take, and
 * TIMER_NS more. A thread that is ahead of another one by more than AHEAD_NS waits for it, so a
 * processor that is busy with something else makes the benchmark longer and changes nothing in it.
 *
 * A thread that waits for something else than the clock (a pipe, a child) or is stopped is not
 * waited for once it was seen to, and goes on where the others are when it comes back. Nobody is
 * made to wait while it holds a mutex.
 */
#include "virtualclock.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)
#define READ_NS   1000
#define TIMER_NS  50000
#define AHEAD_NS  10000

/* In real time. */
#define LOOK_NS   5000000   /* how often those who wait look for those who are away */
#define AWAY_NS   40000000  /* that a thread must have slept to be away */
#define FORCED_NS 400000000 /* after which nobody is waited for */

#define EXPORT __attribute__((visibility("default")))

static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_nanosleep)(clockid_t, int, const struct timespec *, struct timespec *);
static int (*real_lock)(pthread_mutex_t *);
static int (*real_trylock)(pthread_mutex_t *);
static int (*real_timedlock)(pthread_mutex_t *, const struct timespec *);
static int (*real_unlock)(pthread_mutex_t *);

static struct virtualclock *shared;
static pthread_key_t leaving;

static __thread struct virtualclock_thread *own;
static __thread uint64_t now_ns;   /* this thread's; own->at_ns follows */
static __thread uint64_t limit_ns; /* up to which it need not look at the others */
static __thread int mutexes;       /* that it holds */

static uint64_t in_ns(const struct timespec *time)
{
    return (uint64_t) time->tv_sec * SECOND_NS + (uint64_t) time->tv_nsec;
}

static struct timespec in_parts(uint64_t ns)
{
    return (struct timespec) {(time_t) (ns / SECOND_NS), (long) (ns % SECOND_NS)};
}

static uint64_t real_now(void)
{
    struct timespec time;

    real_gettime(CLOCK_MONOTONIC, &time);
    return in_ns(&time);
}

static void leave(void *thread)
{
    __atomic_store_n(&((struct virtualclock_thread *) thread)->thread, 0, __ATOMIC_RELEASE);
}

static void forget_in_child(void)
{
    own = NULL;
    mutexes = 0;
}

static void *next_of(const char *symbol)
{
    void *found = dlsym(RTLD_NEXT, symbol);

    if (!found) {
        fprintf(stderr, "virtualclock: %s\n", dlerror());
        _exit(1);
    }
    return found;
}

#define FIND(pointer, symbol)                        \
    do {                                             \
        void *found_ = next_of(symbol);              \
        memcpy(&(pointer), &found_, sizeof(found_)); \
    } while (0)

static void find_next(void)
{
    if (real_unlock)
        return;
    FIND(real_gettime, "clock_gettime");
    FIND(real_nanosleep, "clock_nanosleep");
    FIND(real_lock, "pthread_mutex_lock");
    FIND(real_trylock, "pthread_mutex_trylock");
    FIND(real_timedlock, "pthread_mutex_timedlock");
    FIND(real_unlock, "pthread_mutex_unlock");
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv(VIRTUALCLOCK_VARIABLE);
    int fd;

    find_next();
    if (!path)
        return;
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || shared == MAP_FAILED) {
        fprintf(stderr, "virtualclock: %s: %s\n", path, strerror(errno));
        _exit(1);
    }
    close(fd);
    pthread_key_create(&leaving, leave);
    pthread_atfork(NULL, NULL, forget_in_child);
}

__attribute__((destructor)) static void end(void)
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
    uint32_t nobody = 0;

    return __atomic_compare_exchange_n(&entry->thread, &nobody, thread, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

static uint64_t frontier(void)
{
    return __atomic_load_n(&shared->frontier_ns, __ATOMIC_ACQUIRE);
}

/* A place among the threads, where the others are. False: there is none, and time is real. */
static bool join(void)
{
    uint32_t thread = (uint32_t) syscall(SYS_gettid);

    for (size_t i = 0; i < VIRTUALCLOCK_THREADS; i++) {
        struct virtualclock_thread *entry = &shared->threads[i];
        if (!take(entry, thread))
            continue;
        now_ns = frontier() ? frontier() : real_now();
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

/* How far the last of the others has come, whom *entry* may not leave behind; or the last of those
 * who wait themselves. */
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

static void wake_those_who_may_go(void)
{
    for (size_t i = 0; i < VIRTUALCLOCK_THREADS; i++) {
        struct virtualclock_thread *other = &shared->threads[i];

        if (other != own && __atomic_load_n(&other->thread, __ATOMIC_ACQUIRE) &&
            __atomic_load_n(&other->state, __ATOMIC_ACQUIRE) == VIRTUALCLOCK_WAITS &&
            may_go(other, __atomic_load_n(&other->at_ns, __ATOMIC_ACQUIRE), NULL))
            wake(other);
    }
}

/* It has come to now_ns, and is not only going to be there once it wakes. */
static void arrive(void)
{
    uint64_t furthest = frontier();

    __atomic_store_n(&own->at_ns, now_ns, __ATOMIC_RELEASE);
    while (furthest < now_ns &&
           !__atomic_compare_exchange_n(&shared->frontier_ns, &furthest, now_ns, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        continue;
}

static char state_of(const struct virtualclock_thread *entry)
{
    char path[64], line[512];
    const char *name_end;
    ssize_t count = -1;
    int fd;

    snprintf(path, sizeof(path), "/proc/%u/task/%u/stat", entry->process, entry->thread);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        count = read(fd, line, sizeof(line) - 1);
        close(fd);
    }
    if (count <= 0)
        return 'X';
    line[count] = '\0';
    name_end = strrchr(line, ')');
    return name_end && name_end[1] ? name_end[2] : 'X';
}

/* Whom everybody waits for: is it dead, stopped, or asleep for something that is no clock? */
static void look_after(struct virtualclock_thread *entry, bool long_asleep)
{
    uint32_t state = __atomic_load_n(&entry->state, __ATOMIC_ACQUIRE);
    char seen = state_of(entry);

    if (seen == 'X' || seen == 'Z')
        leave(entry);
    else if (seen == 'T' || seen == 't' ||
             (state == VIRTUALCLOCK_RUNS && seen == 'S' && long_asleep))
        __atomic_compare_exchange_n(&entry->state, &state, VIRTUALCLOCK_AWAY, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    else if (state == VIRTUALCLOCK_WAITS)
        wake(entry);
}

static void sleep_until_woken(uint32_t wakes)
{
    struct timespec patience = {0, LOOK_NS};

    syscall(SYS_futex, &own->wakes, FUTEX_WAIT, wakes, &patience, NULL, 0);
}

static bool may_go_now(uint64_t began, struct virtualclock_thread **slowest)
{
    if (mode() == VIRTUALCLOCK_GATHER)
        return false;
    if (may_go(own, now_ns, slowest))
        return true;
    /* Of those who wait only the next: others may be asleep until much later. */
    if (real_now() < began + FORCED_NS || now_ns > slowest_but(own, NULL, true))
        return false;
    __atomic_add_fetch(&shared->forced, 1, __ATOMIC_RELAXED);
    return true;
}

/* Those who were away come back to where the others are. */
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
    struct virtualclock_thread *slowest = NULL, *before = NULL;
    uint64_t began = real_now(), since = began, at = 0;

    __atomic_store_n(&own->at_ns, now_ns, __ATOMIC_RELEASE);
    __atomic_store_n(&own->state, VIRTUALCLOCK_WAITS, __ATOMIC_RELEASE);
    wake_those_who_may_go();
    for (;;) {
        uint32_t wakes = __atomic_load_n(&own->wakes, __ATOMIC_ACQUIRE);

        if (may_go_now(began, &slowest))
            break;
        sleep_until_woken(wakes);
        if (!slowest)
            continue;
        if (slowest != before || __atomic_load_n(&slowest->at_ns, __ATOMIC_ACQUIRE) != at) {
            before = slowest;
            at = __atomic_load_n(&slowest->at_ns, __ATOMIC_ACQUIRE);
            since = real_now();
        } else if (real_now() > since + LOOK_NS) {
            look_after(slowest, real_now() > since + AWAY_NS);
        }
    }
    come_back();
    __atomic_store_n(&own->state, VIRTUALCLOCK_RUNS, __ATOMIC_RELEASE);
    arrive();
    limit_ns = now_ns + AHEAD_NS;
}

/* Nobody reads a time that is earlier than one that was read before, by whomever. */
static void keep_pace(void)
{
    if (now_ns < frontier())
        now_ns = frontier();
    arrive();
    if (now_ns >= limit_ns && mutexes == 0)
        wait_for_others();
}

static bool is_virtual(clockid_t clock)
{
    bool counts = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE ||
                  clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_BOOTTIME;

    if (!counts || mode() == VIRTUALCLOCK_REAL || (!own && !join()))
        return false;
    come_back();
    return true;
}

static int64_t moved_by(const int64_t *offset)
{
    return __atomic_load_n(offset, __ATOMIC_RELAXED);
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *time)
{
    find_next();
    if (!is_virtual(clock)) {
        int result = real_gettime(clock, time);

        if (clock == CLOCK_REALTIME && shared)
            *time = in_parts(in_ns(time) + (uint64_t) moved_by(&shared->step_ns));
        return result;
    }
    if (clock != CLOCK_MONOTONIC_COARSE) {
        now_ns += READ_NS;
        keep_pace();
    }
    *time = in_parts(now_ns + (uint64_t) moved_by(&shared->leap_ns));
    return 0;
}

EXPORT int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request,
                           struct timespec *remain)
{
    uint64_t until;

    find_next();
    if (!is_virtual(clock))
        return real_nanosleep(clock, flags, request, remain);
    until = in_ns(request);
    until += flags & TIMER_ABSTIME ? -(uint64_t) moved_by(&shared->leap_ns) : now_ns;
    now_ns += READ_NS;
    if (until > now_ns && until - now_ns < (uint64_t) INT64_MAX)
        now_ns = until + TIMER_NS;
    wait_for_others();
    return 0;
}

EXPORT int nanosleep(const struct timespec *request, struct timespec *remain)
{
    int result = clock_nanosleep(CLOCK_MONOTONIC, 0, request, remain);

    if (!result)
        return 0;
    errno = result;
    return -1;
}

EXPORT int usleep(useconds_t microseconds)
{
    struct timespec request = in_parts((uint64_t) microseconds * 1000);

    return nanosleep(&request, NULL);
}

EXPORT int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    int result;

    find_next();
    result = real_lock(mutex);
    mutexes += result == 0 || result == EOWNERDEAD;
    return result;
}

EXPORT int pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    int result;

    find_next();
    result = real_trylock(mutex);
    mutexes += result == 0 || result == EOWNERDEAD;
    return result;
}

EXPORT int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until)
{
    int result;

    find_next();
    result = real_timedlock(mutex, until);
    mutexes += result == 0 || result == EOWNERDEAD;
    return result;
}

EXPORT int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    int result;

    find_next();
    result = real_unlock(mutex);
    mutexes -= mutexes > 0 && result == 0;
    if (own && mutexes == 0 && now_ns > limit_ns && mode() == VIRTUALCLOCK_GOES)
        wait_for_others();
    return result;
}
