/* SPDX-License-Identifier: Apache-2.0 */
/* profiler.c -- profiler control: accepted and ignored, there is no profiler. */
#include "process.h"

/* Declared in cudaProfiler.h, which comes in a wheel that nothing else here needs. */
#pragma GCC visibility push(default)
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
#pragma GCC visibility pop

CUresult cuProfilerStart(void)
{
    ENTER();
    return current_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuProfilerStop(void)
{
    ENTER();
    return current_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
