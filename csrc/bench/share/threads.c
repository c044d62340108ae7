/* SPDX-License-Identifier: Apache-2.0 */
/* threads.c -- workloads in which several threads launch, each on a stream of its own. */
#include "bench/draw.h"
#include "kinds.h"
#include "program.h"

#include <pthread.h>
#include <stddef.h>

enum { CROWD = 8, EACH = 64, GRIDS = 40, GRID_STEP = 8, ROUNDS = 4, AHEAD = 64 };

#define SHORTEST_NS (2 * MICROSECOND_NS)

static struct caller callers[CROWD];
static uint64_t lengths[ROUNDS][CROWD][EACH];
static unsigned grids[ROUNDS][CROWD][EACH];

static void start_thread(pthread_t *thread, void *(*body)(void *), void *argument)
{
    if (pthread_create(thread, NULL, body, argument))
        program_check("pthread_create", CUDA_ERROR_OPERATING_SYSTEM);
}

/* more[0]: the length of the long kernels, each launched when the previous one has ended. */
static void *run_long(void *argument)
{
    struct shape shape = {program_function(1), QUARTER_BLOCKS, THREADS, 0};
    struct caller *caller = argument;
    CUstream stream;

    program_begin_caller(caller);
    stream = program_stream();
    while (program_goes_on()) {
        program_launch_caller(caller, &shape, program.more[0], stream);
        program_check("cuStreamSynchronize", cuStreamSynchronize(stream));
    }
    program_end_caller(caller);
    return NULL;
}

/* more[1]: the most short kernels in flight; 0: as many as the driver accepts. */
static void *run_pair(void *unused)
{
    struct shape shape = {program_function(0), QUARTER_BLOCKS, THREADS, 0};
    uint64_t ahead = program.more[1] < AHEAD ? program.more[1] : AHEAD;
    CUevent events[AHEAD];
    pthread_t other;
    CUstream stream;

    start_thread(&other, run_long, &callers[1]);
    program_begin_caller(&callers[0]);
    stream = program_stream();
    for (uint64_t i = 0; i < ahead; i++)
        program_check("cuEventCreate", cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    while (program_goes_on()) {
        CUevent event = ahead ? events[callers[0].launches % ahead] : NULL;

        if (event && callers[0].launches >= ahead)
            program_check("cuEventSynchronize", cuEventSynchronize(event));
        program_launch_caller(&callers[0], &shape, program.length_ns, stream);
        if (event)
            program_check("cuEventRecord", cuEventRecord(event, stream));
    }
    program_check("cuStreamSynchronize", cuStreamSynchronize(stream));
    program_end_caller(&callers[0]);
    pthread_join(other, NULL);
    return unused;
}

void threads_pair(void)
{
    program_watch(run_pair);
    program_tell_caller(&callers[0], &callers[1], 1);
    program_tell("long_launches", callers[1].launches);
}

static void *run_one(void *argument)
{
    struct caller *caller = argument;
    ptrdiff_t number = caller - callers;
    CUstream stream;

    program_begin_caller(caller);
    stream = program_stream();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < EACH; i++) {
            struct shape shape = {program_function(0), grids[round][number][i], THREADS, 0};

            program_launch_caller(caller, &shape, lengths[round][number][i], stream);
        }
        program_check("cuStreamSynchronize", cuStreamSynchronize(stream));
    }
    program_end_caller(caller);
    return NULL;
}

static void *run_crowd(void *unused)
{
    pthread_t threads[CROWD];

    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < CROWD; i++)
            for (int j = 0; j < EACH; j++) {
                lengths[round][i][j] = SHORTEST_NS + draw() % (program.length_ns - SHORTEST_NS + 1);
                grids[round][i][j] = GRID_STEP * (1 + (unsigned) (draw() % GRIDS));
            }
    for (int i = 0; i < CROWD; i++)
        start_thread(&threads[i], run_one, &callers[i]);
    for (int i = 0; i < CROWD; i++)
        pthread_join(threads[i], NULL);
    return unused;
}

/* Kernels of random lengths up to the program's, in GRIDS grids. */
void threads_many(void)
{
    uint64_t last = 0;

    program_watch(run_crowd);
    program_tell_caller(&callers[0], callers, CROWD);
    for (int i = 0; i < CROWD; i++)
        if (callers[i].ended_ns > last)
            last = callers[i].ended_ns;
    program_tell("work_ns", last ? last - program.from_ns : program_now() - program.from_ns);
}
