/* SPDX-License-Identifier: Apache-2.0 */
/* launches.c -- what it costs to launch a kernel that need not wait for its share.
 *
 * One about every microsecond, as a program on a device launches at most: what is launched faster
 * than it is done would wait, in the driver or for its share.
 */
#include "calls.h"
#include "figures.h"

#include <pthread.h>
#include <stdlib.h>

enum { THREADS = 16, PAUSE_NS = 2000 };

static const char image[] = ".version 8.0\n.target sm_70\n.address_size 64\n"
                            ".visible .entry nothing() { ret; }\n";

static CUfunction function;

static void prepare(void)
{
    CUmodule module;

    calls_begin();
    library_check("cuModuleLoadData", CALL(cuModuleLoadData)(&module, image));
    library_check("cuModuleGetFunction", CALL(cuModuleGetFunction)(&function, module, "nothing"));
}

static uint64_t time_launch(CUstream stream)
{
    uint64_t until = timer_monotonic_ns() + PAUSE_NS;
    uint64_t began, ticks;
    CUresult result;

    while (timer_monotonic_ns() < until)
        ;
    began = timer_begin();
    result = CALL(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    ticks = timer_end() - began;
    library_check("cuLaunchKernel", result);
    return ticks;
}

static void time_launches(CUstream stream, uint64_t *values, size_t count)
{
    for (size_t i = 0; i < WARM_UP; i++)
        time_launch(stream);
    for (size_t i = 0; i < count; i++)
        values[i] = time_launch(stream);
}

void figure_launch(size_t count)
{
    struct samples samples = samples_make(count);
    CUstream stream;

    prepare();
    library_check("cuStreamCreate", CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    time_launches(stream, samples.values, count);
    samples_report_ticks("launch", &samples);
}

static struct samples shared;
static CUcontext context;

static void *launch_in_thread(void *argument)
{
    size_t part = shared.capacity / THREADS;
    CUstream stream;

    library_check("cuCtxSetCurrent", CALL(cuCtxSetCurrent)(context));
    library_check("cuStreamCreate", CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    time_launches(stream, shared.values + (uintptr_t) argument * part, part);
    return NULL;
}

void figure_launch_threads(size_t count)
{
    pthread_t threads[THREADS];

    shared = samples_make(count / THREADS * THREADS);
    prepare();
    library_check("cuCtxGetCurrent", CALL(cuCtxGetCurrent)(&context));
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, launch_in_thread, (void *) i) != 0)
            exit(1);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    samples_report_ticks("launch-threads", &shared);
}
