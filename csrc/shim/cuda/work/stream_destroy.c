/* SPDX-License-Identifier: Apache-2.0 */
/* stream_destroy.c -- hooks that destroy streams, after dropping all records of the stream. */
#include "shim/cuda/work/pace.h"
#include "shim/cuda/memory/pool_ranges.h"
#include "shim/driver.h"

static CUresult destroy(CUresult (*destroyer)(CUstream), CUstream stream)
{
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    pace_end_stream(stream);
    capture_end_stream(stream);
    pool_ranges_end_stream(stream);
    return destroyer(stream);
}

CUresult cuStreamDestroy(CUstream stream)
{
    return destroy(driver.cuStreamDestroy, stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    return destroy(driver.cuStreamDestroy_v2, stream);
}
