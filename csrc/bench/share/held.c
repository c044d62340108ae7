/* SPDX-License-Identifier: Apache-2.0 */
/* held.c -- workloads in which one stream waits for the host while another one has work. */
#include "kinds.h"
#include "program.h"

#include <pthread.h>
#include <stddef.h>

#define POLL_NS (100 * MICROSECOND_NS)

static uint32_t is_open;
static uint32_t *word; /* a stream waits for its value */
static CUstream held;
static struct caller caller, behind; /* beside the stream that waits, and behind its wait */
static void (*hold)(void);

static void CUDA_CB wait_until_open(void *unused)
{
    (void) unused;
    while (!__atomic_load_n(&is_open, __ATOMIC_ACQUIRE))
        program_sleep_until(program_now() + POLL_NS);
}

static void hold_by_host(void)
{
    program_check("cuLaunchHostFunc", cuLaunchHostFunc(held, wait_until_open, NULL));
}

/* The event is recorded behind a host function on a third stream. */
static void hold_by_event(void)
{
    CUstream third = program_stream();
    CUevent event;

    program_check("cuEventCreate", cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    program_check("cuLaunchHostFunc", cuLaunchHostFunc(third, wait_until_open, NULL));
    program_check("cuEventRecord", cuEventRecord(event, third));
    program_check("cuStreamWaitEvent", cuStreamWaitEvent(held, event, 0));
}

static void hold_by_value(void)
{
    CUdeviceptr address;

    program_check("cuMemHostAlloc",
                  cuMemHostAlloc((void **) &word, sizeof(*word), CU_MEMHOSTALLOC_DEVICEMAP));
    *word = 0;
    program_check("cuMemHostGetDevicePointer", cuMemHostGetDevicePointer(&address, word, 0));
    program_check("cuStreamWaitValue32",
                  cuStreamWaitValue32(held, address, 1, CU_STREAM_WAIT_VALUE_EQ));
}

static void let_go(void)
{
    __atomic_store_n(&is_open, 1, __ATOMIC_RELEASE);
    if (word)
        __atomic_store_n(word, 1, __ATOMIC_RELEASE);
}

static void *work_beside(void *unused)
{
    struct shape shape = {program_function(0), BLOCKS, THREADS, 0};
    CUstream stream;

    program_begin_caller(&behind);
    held = program_stream();
    stream = program_stream();
    hold();
    for (uint64_t i = 0; i < program.more[0]; i++)
        program_launch_caller(&behind, &shape, program.length_ns, held);
    program_begin_caller(&caller);
    while (program_goes_on())
        program_launch_caller(&caller, &shape, program.length_ns, stream);
    program_check("cuStreamSynchronize", cuStreamSynchronize(stream));
    program_end_caller(&caller);
    let_go();
    program_check("cuStreamSynchronize", cuStreamSynchronize(held));
    return unused;
}

static void work_held(void (*by)(void))
{
    hold = by;
    program_watch(work_beside);
    program_tell_caller(&caller, &behind, 1);
}

void held_by_host(void)
{
    work_held(hold_by_host);
}

void held_by_event(void)
{
    work_held(hold_by_event);
}

void held_by_value(void)
{
    work_held(hold_by_value);
}

static void *launch_and_wait(void *shape)
{
    struct caller known;
    CUstream stream;

    program_begin_caller(&known);
    stream = program_stream();
    while (!__atomic_load_n(&is_open, __ATOMIC_ACQUIRE) && program_goes_on()) {
        program_launch_caller(&known, shape, program.length_ns, stream);
        program_check("cuStreamSynchronize", cuStreamSynchronize(stream));
    }
    return NULL;
}

/* Launch the same new kernel behind the gate and beside it; only then open the gate. */
static void *open_after_launches(void *unused)
{
    struct shape unseen = {program_function(1), BLOCKS, THREADS, 0};
    CUstream stream;

    program_begin_caller(&caller);
    held = program_stream();
    stream = program_stream();
    hold_by_host();
    program_launch_caller(&caller, &unseen, program.length_ns, held);
    program_launch_caller(&caller, &unseen, program.length_ns, stream);
    let_go();
    program_check("cuStreamSynchronize", cuStreamSynchronize(held));
    program_check("cuStreamSynchronize", cuStreamSynchronize(stream));
    program_end_caller(&caller);
    return unused;
}

static void *run_both(void *unused)
{
    struct shape known = {program_function(0), BLOCKS, THREADS, 0};
    struct caller first;
    CUstream stream;
    pthread_t other;

    program_begin_caller(&first);
    stream = program_stream();
    for (int i = 0; i < 100; i++) {
        program_launch_caller(&first, &known, program.length_ns, stream);
        program_check("cuStreamSynchronize", cuStreamSynchronize(stream));
    }
    if (pthread_create(&other, NULL, launch_and_wait, &known))
        program_check("pthread_create", CUDA_ERROR_OPERATING_SYSTEM);
    open_after_launches(NULL);
    pthread_join(other, NULL);
    return unused;
}

void held_gated(void)
{
    program_watch(run_both);
    program_tell_caller(&caller, NULL, 0);
}
