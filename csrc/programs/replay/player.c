/* SPDX-License-Identifier: Apache-2.0 */
/* player.c -- replays a program's CUDA calls, recorded by a profiler, on the installed driver.
 *
 *   player PROGRAM TIMES LINGER_NS    then "FROM", ns of CLOCK_MONOTONIC, on standard input
 *
 * One thread per recorded thread makes its calls in their order and computes between them as long
 * as the original did; how long a call takes is up to the driver. The player prints "ready" when it
 * has created all objects, plays the program TIMES times from FROM on, waits for the device, and
 * prints a line of JSON. It exits LINGER_NS later, so that a witness sees its last work.
 */
#include "bench/share/virtualclock.h"
#include "programs/replay/device.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)
#define LONG_NS   UINT64_C(10000000)
#define TIMER_NS  UINT64_C(60000) /* timers are late by about as much */

/* State and statistics of one thread. */
struct thread {
    const struct program_range *calls;
    pthread_t handle;
    uint32_t done;
    uint32_t wanted; /* the lowest `done` that another thread waits for; UINT32_MAX: none does */
    uint64_t launches, launching_ns, longest_ns, longest_others_ns, slow_launches;
    uint64_t *done_at_ns; /* of each of its calls, in the latest round */
};

static struct program program;
static struct thread *threads;
static uint32_t rounds;
static uint64_t from_ns;

static uint32_t *last_order; /* by stream: the order of the last call made */
static uint64_t disorder;

static virtualclock_compute_until_call *compute_until;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * SECOND_NS + (uint64_t) now.tv_nsec;
}

static void sleep_until(uint64_t then)
{
    struct timespec moment = {(time_t) (then / SECOND_NS), (long) (then % SECOND_NS)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL))
        continue;
}

static void compute(uint64_t then)
{
    uint64_t now;

    if (compute_until) {
        compute_until(then);
        return;
    }
    now = now_ns();
    if (then > now + 2 * TIMER_NS)
        sleep_until(then - TIMER_NS);
    while (now_ns() < then)
        continue;
}

/* Wait until this number of calls of a thread is done. */
static void wait_for(struct thread *thread, uint32_t calls)
{
    if (__atomic_load_n(&thread->done, __ATOMIC_ACQUIRE) >= calls)
        return;
    pthread_mutex_lock(&lock);
    for (;;) {
        if (calls < __atomic_load_n(&thread->wanted, __ATOMIC_RELAXED))
            __atomic_store_n(&thread->wanted, calls, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&thread->done, __ATOMIC_SEQ_CST) >= calls)
            break;
        pthread_cond_wait(&progress, &lock);
    }
    pthread_mutex_unlock(&lock);
}

static void say_done(struct thread *thread)
{
    uint32_t done = __atomic_add_fetch(&thread->done, 1, __ATOMIC_SEQ_CST);

    if (done < __atomic_load_n(&thread->wanted, __ATOMIC_SEQ_CST))
        return;
    pthread_mutex_lock(&lock);
    __atomic_store_n(&thread->wanted, UINT32_MAX,
                     __ATOMIC_SEQ_CST); /* waiting threads set it again */
    pthread_cond_broadcast(&progress);
    pthread_mutex_unlock(&lock);
}

static bool launches(const struct program_call *call)
{
    return call->kind == PROGRAM_LAUNCH || call->kind == PROGRAM_GRAPH;
}

static void note_order(const struct program_call *call, uint32_t round)
{
    uint32_t place = round * program.header->records + call->order + 1;
    uint32_t last;

    if (call->kind > PROGRAM_FILL)
        return;
    last = __atomic_exchange_n(&last_order[call->stream], place, __ATOMIC_ACQ_REL);
    if (last > place)
        __atomic_add_fetch(&disorder, 1, __ATOMIC_RELAXED);
}

static bool waits_by_nature(const struct program_call *call)
{
    return call->flags & PROGRAM_BLOCKS ||
           (call->kind >= PROGRAM_STREAM_SYNC && call->kind <= PROGRAM_EVENT_SYNC);
}

static void make_call(struct thread *thread, const struct program_call *call, uint32_t round)
{
    uint64_t began = now_ns(), took;

    note_order(call, round);
    device_call(call);
    took = now_ns() - began;
    if (launches(call)) {
        thread->launches++;
        thread->launching_ns += took;
        thread->slow_launches += took > LONG_NS;
        if (took > thread->longest_ns)
            thread->longest_ns = took;
    } else if (!waits_by_nature(call) && took > thread->longest_others_ns) {
        thread->longest_others_ns = took;
    }
}

/* When the gap before the call began. */
static uint64_t wait_before(const struct program_call *call, uint32_t round, uint64_t last_ns)
{
    for (int i = 0; i < 2; i++) {
        const struct program_after *after = &call->after[i];
        struct thread *other;

        if (after->thread == PROGRAM_NONE)
            continue;
        other = &threads[after->thread];
        wait_for(other, round * other->calls->count + after->calls);
        if (i == 0 && call->flags & PROGRAM_GAP_OF_FIRST)
            last_ns = other->done_at_ns[after->calls - 1];
    }
    return last_ns;
}

static void *play(void *argument)
{
    struct thread *thread = argument;
    uint64_t last_ns = from_ns;

    sleep_until(from_ns - 2 * TIMER_NS);
    compute(from_ns);
    device_enter();
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t i = 0; round && i < program.header->threads; i++)
            wait_for(&threads[i], round * threads[i].calls->count);
        if (round)
            last_ns = now_ns();
        for (uint32_t i = 0; i < thread->calls->count; i++) {
            const struct program_call *call = &program.calls[thread->calls->first + i];

            compute(wait_before(call, round, last_ns) + call->gap_ns);
            make_call(thread, call, round);
            last_ns = thread->done_at_ns[i] = now_ns();
            say_done(thread);
        }
    }
    return NULL;
}

static void report(uint64_t ended)
{
    struct thread sum = {0};

    for (uint32_t i = 0; i < program.header->threads; i++) {
        const struct thread *thread = &threads[i];

        sum.launches += thread->launches;
        sum.launching_ns += thread->launching_ns;
        sum.slow_launches += thread->slow_launches;
        if (thread->longest_ns > sum.longest_ns)
            sum.longest_ns = thread->longest_ns;
        if (thread->longest_others_ns > sum.longest_others_ns)
            sum.longest_others_ns = thread->longest_others_ns;
    }
    printf("{\"began\": %" PRIu64 ", \"ended\": %" PRIu64 ", \"launches\": %" PRIu64
           ", \"launching_ns\": %" PRIu64 ", \"longest_launch_ns\": %" PRIu64
           ", \"longest_other_ns\": %" PRIu64 ", \"slow_launches\": %" PRIu64
           ", \"disorder\": %" PRIu64 "}\n",
           from_ns, ended, sum.launches, sum.launching_ns, sum.longest_ns, sum.longest_others_ns,
           sum.slow_launches, disorder);
    fflush(stdout);
}

static void make_threads(void)
{
    uint32_t count = program.header->threads;

    threads = calloc(count, sizeof(*threads));
    last_order = calloc(program.header->streams, sizeof(*last_order));
    for (uint32_t i = 0; threads && i < count; i++) {
        threads[i].calls = &program.threads[i];
        threads[i].wanted = UINT32_MAX;
        threads[i].done_at_ns = calloc(program.threads[i].count + 1, sizeof(uint64_t));
        if (!threads[i].done_at_ns)
            threads = NULL;
    }
    if (!threads || !last_order) {
        fputs("player: out of memory\n", stderr);
        _exit(1);
    }
}

int main(int argc, char **argv)
{
    uint64_t linger = argc == 4 ? strtoull(argv[3], NULL, 10) : 0;
    uint64_t ended;
    void *found;

    rounds = argc == 4 ? (uint32_t) strtoul(argv[2], NULL, 10) : 0;
    if (!rounds) {
        fputs("usage: player PROGRAM TIMES LINGER_NS, such as player bert.program 1 5000000\n",
              stderr);
        return 2;
    }
    if (program_open(&program, argv[1]) != 0 || !program.header->threads)
        return 1;
    found = dlsym(RTLD_DEFAULT, "virtualclock_compute_until");
    memcpy(&compute_until, &found, sizeof(found));
    make_threads();
    device_open(&program);
    puts("ready");
    fflush(stdout);
    if (scanf("%" SCNu64, &from_ns) != 1)
        return 1;
    for (uint32_t i = 1; i < program.header->threads; i++)
        if (pthread_create(&threads[i].handle, NULL, play, &threads[i]) != 0)
            return 1;
    play(&threads[0]);
    for (uint32_t i = 1; i < program.header->threads; i++)
        wait_for(&threads[i], rounds * threads[i].calls->count);
    device_finish();
    ended = now_ns();
    report(ended);
    sleep_until(ended + linger);
    _exit(0);
}
