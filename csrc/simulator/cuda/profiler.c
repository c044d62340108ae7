/* SPDX-License-Identifier: Apache-2.0 */
/* profiler.c -- marks for a profiler, of which there is none: accepted. */
#include "process.h"

/* These are in cudaProfiler.h, which is in a wheel that nothing else here needs. */
#pragma GCC visibility push(default)
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
#pragma GCC visibility pop

CUresult cuProfilerStart(void)
{
    ENTER();
    return context_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuProfilerStop(void)
{
    ENTER();
    return context_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
