/* SPDX-License-Identifier: Apache-2.0 */
/* launches.c -- latency of a kernel launch that is not throttled.
 *
 * About one launch every microsecond, the most that a program on a device makes: kernels launched
 * faster than they run would wait, in the driver or for their share.
 */
#include "figures.h"

enum { PAUSE_NS = 2000 };

static const char image[] = ".version 8.0\n.target sm_70\n.address_size 64\n"
                            ".visible .entry nothing() { ret; }\n";

static CUfunction function;
static CUcontext context;
static __thread CUstream stream;

void launches_prepare(void)
{
    CUmodule module;

    call_open();
    library_check("cuCtxGetCurrent", CALL(cuCtxGetCurrent)(&context));
    library_check("cuModuleLoadData", CALL(cuModuleLoadData)(&module, image));
    library_check("cuModuleGetFunction", CALL(cuModuleGetFunction)(&function, module, "nothing"));
}

void launches_begin(void)
{
    library_check("cuCtxSetCurrent", CALL(cuCtxSetCurrent)(context));
    library_check("cuStreamCreate", CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
}

uint64_t launches_time(void)
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
