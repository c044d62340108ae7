/* SPDX-License-Identifier: Apache-2.0 */
/* virtualclock.c -- LD_PRELOAD library with a virtual CLOCK_MONOTONIC for benchmarks, as if each
 * thread had a processor of its own.
 *
 * The shim, the simulated driver, the arbiter and the programs run unchanged; they read this clock
 * as CLOCK_MONOTONIC and sleep by it. Computing takes no time except reading the clock (READ_NS,
 * about as long as a driver call); a sleep takes as long as requested plus TIMER_NS. Threads that
 * are ahead wait for the others, see turns.h, so a processor that is busy with other work makes the
 * benchmark take longer and does not change its results.
 */
#include "virtualclock.h"
#include "turns.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
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
#define SIGNAL_NS 100000 /* most time until a wait with a deadline sees a signal */

#define EXPORT __attribute__((visibility("default")))

static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_nanosleep)(clockid_t, int, const struct timespec *, struct timespec *);
static int (*real_create)(pthread_t *, const pthread_attr_t *, void *(*) (void *), void *);
static int (*real_lock)(pthread_mutex_t *);
static int (*real_trylock)(pthread_mutex_t *);
static int (*real_timedlock)(pthread_mutex_t *, const struct timespec *);
static int (*real_unlock)(pthread_mutex_t *);
static int (*real_wait)(pthread_cond_t *, pthread_mutex_t *);
static int (*real_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_signal)(pthread_cond_t *);
static int (*real_broadcast)(pthread_cond_t *);

static const struct virtualclock *shared;

static uint64_t in_ns(const struct timespec *time)
{
    return (uint64_t) time->tv_sec * SECOND_NS + (uint64_t) time->tv_nsec;
}

static struct timespec in_parts(uint64_t ns)
{
    return (struct timespec) {(time_t) (ns / SECOND_NS), (long) (ns % SECOND_NS)};
}

static void *next_of(const char *symbol)
{
    /* On x86-64 the same names also have an older version with other condition variables. */
    void *newer = dlvsym(RTLD_NEXT, symbol, "GLIBC_2.3.2");
    void *found = newer ? newer : dlsym(RTLD_NEXT, symbol);

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
    FIND(real_wait, "pthread_cond_wait");
    FIND(real_timedwait, "pthread_cond_timedwait");
    FIND(real_signal, "pthread_cond_signal");
    FIND(real_broadcast, "pthread_cond_broadcast");
    FIND(real_create, "pthread_create");
    FIND(real_lock, "pthread_mutex_lock");
    FIND(real_trylock, "pthread_mutex_trylock");
    FIND(real_timedlock, "pthread_mutex_timedlock");
    FIND(real_unlock, "pthread_mutex_unlock");
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv(VIRTUALCLOCK_VARIABLE);
    struct virtualclock *mapped = MAP_FAILED;
    int fd;

    find_next();
    if (!path)
        return;
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        mapped = mmap(NULL, sizeof(*mapped), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || mapped == MAP_FAILED) {
        fprintf(stderr, "virtualclock: %s: %s\n", path, strerror(errno));
        _exit(1);
    }
    close(fd);
    turns_begin(mapped);
    shared = mapped;
}

__attribute__((destructor)) static void end(void)
{
    turns_leave();
}

static bool is_virtual(clockid_t clock)
{
    bool counts = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE ||
                  clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_BOOTTIME;

    return counts && turns_take_part();
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
    if (clock != CLOCK_MONOTONIC_COARSE)
        turns_pass(READ_NS);
    *time = in_parts(turns_now() + (uint64_t) moved_by(&shared->leap_ns));
    return 0;
}

EXPORT int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request,
                           struct timespec *remain)
{
    uint64_t until, called;

    find_next();
    if (!is_virtual(clock))
        return real_nanosleep(clock, flags, request, remain);
    until = in_ns(request);
    until += flags & TIMER_ABSTIME ? -(uint64_t) moved_by(&shared->leap_ns) : turns_now();
    called = turns_now() + READ_NS;
    turns_sleep_until(until > called && until - called < (uint64_t) INT64_MAX ? until + TIMER_NS
                                                                              : called);
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

EXPORT virtualclock_compute_until_call virtualclock_compute_until;

void virtualclock_compute_until(uint64_t then_ns)
{
    if (!turns_take_part())
        return;
    then_ns -= (uint64_t) moved_by(&shared->leap_ns);
    if (then_ns > turns_now())
        turns_sleep_until(then_ns);
}

/* Arguments of a new thread. */
struct beginning {
    void *(*body)(void *);
    void *argument;
    bool takes_part;
};

static void *begin_thread(void *argument)
{
    struct beginning *beginning = argument;
    struct beginning own = *beginning;

    turns_take_part();
    __atomic_store_n(&beginning->takes_part, true, __ATOMIC_RELEASE);
    return own.body(own.argument);
}

/* A new thread takes part from its creation on, however late the computer schedules it. The creator
 * yields instead of sleeping meanwhile: a sleeping thread would count as away. */
EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*body)(void *), void *argument)
{
    struct beginning beginning = {body, argument, false};
    int result;

    find_next();
    if (!turns_take_part())
        return real_create(thread, attributes, body, argument);
    result = real_create(thread, attributes, begin_thread, &beginning);
    while (result == 0 && !__atomic_load_n(&beginning.takes_part, __ATOMIC_ACQUIRE))
        sched_yield();
    return result;
}

static int locked(int result)
{
    if (result == 0 || result == EOWNERDEAD)
        turns_lock();
    return result;
}

EXPORT int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    find_next();
    return locked(real_lock(mutex));
}

EXPORT int pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    find_next();
    return locked(real_trylock(mutex));
}

EXPORT int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until)
{
    find_next();
    return locked(real_timedlock(mutex, until));
}

EXPORT int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    int result;

    find_next();
    result = real_unlock(mutex);
    if (result == 0)
        turns_unlock();
    return result;
}

/* All conditions use CLOCK_MONOTONIC; wakeups may be spurious. A thread that waits by the real
 * clock when the virtual one starts is still woken by real_signal(). */
enum { SIGNALS = 64 };

static uint32_t signals[SIGNALS]; /* number of signals, of all conditions with that hash */

static uint32_t *signals_of(const pthread_cond_t *condition)
{
    return &signals[(uintptr_t) condition / sizeof(*condition) % SIGNALS];
}

EXPORT int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    uint32_t *count = signals_of(condition);
    uint32_t seen;

    find_next();
    if (!turns_take_part())
        return real_wait(condition, mutex);
    seen = __atomic_load_n(count, __ATOMIC_ACQUIRE);
    pthread_mutex_unlock(mutex);
    turns_wait_for_call(condition);
    while (__atomic_load_n(count, __ATOMIC_ACQUIRE) == seen)
        syscall(SYS_futex, count, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    turns_return();
    return pthread_mutex_lock(mutex);
}

EXPORT int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *deadline)
{
    uint64_t until;

    find_next();
    if (!turns_take_part())
        return real_timedwait(condition, mutex, deadline);
    until = in_ns(deadline) - (uint64_t) moved_by(&shared->leap_ns);
    pthread_mutex_unlock(mutex);
    turns_sleep_until(until < turns_now() + SIGNAL_NS ? until : turns_now() + SIGNAL_NS);
    pthread_mutex_lock(mutex);
    return turns_now() >= until ? ETIMEDOUT : 0;
}

static void note_signal(const pthread_cond_t *condition)
{
    uint32_t *count = signals_of(condition);

    turns_call(condition);
    __atomic_add_fetch(count, 1, __ATOMIC_ACQ_REL);
    syscall(SYS_futex, count, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

EXPORT int pthread_cond_signal(pthread_cond_t *condition)
{
    find_next();
    note_signal(condition);
    return real_signal(condition);
}

EXPORT int pthread_cond_broadcast(pthread_cond_t *condition)
{
    find_next();
    note_signal(condition);
    return real_broadcast(condition);
}
