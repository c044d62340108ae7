/* SPDX-License-Identifier: Apache-2.0 */
/* stream_wait.c -- hooks of calls that make a stream wait, and of queries whether work is done.
 *
 * A stream's wait is not work: the piece before it ends there, and work behind it begins when the
 * wait is over. A program that polls until its work is done never calls a function that waits, so a
 * query, too, checks which work is done.
 */
#include "shim/cuda/work/pace.h"
#include "shim/driver.h"

/* *stream* is a struct stream, by value. */
#define HELD(stream, symbol, ...)              \
    do {                                       \
        CUresult result;                       \
                                               \
        if (unlikely(!shim.open))              \
            return CUDA_ERROR_NOT_INITIALIZED; \
        pace_hold(stream);                     \
        result = driver.symbol(__VA_ARGS__);   \
        if (likely(result == CUDA_SUCCESS))    \
            pace_held(stream);                 \
        return result;                         \
    } while (0)

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    HELD(STREAM_LEGACY(stream), cuStreamWaitEvent, stream, event, flags);
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
    HELD(STREAM_PER_THREAD(stream), cuStreamWaitEvent_ptsz, stream, event, flags);
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data,
                             unsigned int flags)
{
    HELD(STREAM_LEGACY(stream), cuStreamAddCallback, stream, callback, data, flags);
}

CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *data,
                                  unsigned int flags)
{
    HELD(STREAM_PER_THREAD(stream), cuStreamAddCallback_ptsz, stream, callback, data, flags);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
    HELD(STREAM_LEGACY(stream), cuLaunchHostFunc, stream, function, data);
}

CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data)
{
    HELD(STREAM_PER_THREAD(stream), cuLaunchHostFunc_ptsz, stream, function, data);
}

CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *data, unsigned int mode)
{
    HELD(STREAM_LEGACY(stream), cuLaunchHostFunc_v2, stream, function, data, mode);
}

CUresult cuLaunchHostFunc_v2_ptsz(CUstream stream, CUhostFn function, void *data, unsigned int mode)
{
    HELD(STREAM_PER_THREAD(stream), cuLaunchHostFunc_v2_ptsz, stream, function, data, mode);
}

#define WAIT_VALUE(symbol, form, number)                                                    \
    CUresult symbol(CUstream stream, CUdeviceptr address, number value, unsigned int flags) \
    {                                                                                       \
        HELD(form(stream), symbol, stream, address, value, flags);                          \
    }

WAIT_VALUE(cuStreamWaitValue32, STREAM_LEGACY, cuuint32_t)
WAIT_VALUE(cuStreamWaitValue32_ptsz, STREAM_PER_THREAD, cuuint32_t)
WAIT_VALUE(cuStreamWaitValue32_v2, STREAM_LEGACY, cuuint32_t)
WAIT_VALUE(cuStreamWaitValue32_v2_ptsz, STREAM_PER_THREAD, cuuint32_t)
WAIT_VALUE(cuStreamWaitValue64, STREAM_LEGACY, cuuint64_t)
WAIT_VALUE(cuStreamWaitValue64_ptsz, STREAM_PER_THREAD, cuuint64_t)
WAIT_VALUE(cuStreamWaitValue64_v2, STREAM_LEGACY, cuuint64_t)
WAIT_VALUE(cuStreamWaitValue64_v2_ptsz, STREAM_PER_THREAD, cuuint64_t)

#define BATCH(symbol, form)                                                              \
    CUresult symbol(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *list, \
                    unsigned int flags)                                                  \
    {                                                                                    \
        HELD(form(stream), symbol, stream, count, list, flags);                          \
    }

BATCH(cuStreamBatchMemOp, STREAM_LEGACY)
BATCH(cuStreamBatchMemOp_ptsz, STREAM_PER_THREAD)
BATCH(cuStreamBatchMemOp_v2, STREAM_LEGACY)
BATCH(cuStreamBatchMemOp_v2_ptsz, STREAM_PER_THREAD)

CUresult cuWaitExternalSemaphoresAsync(const CUexternalSemaphore *semaphores,
                                       const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *params,
                                       unsigned int count, CUstream stream)
{
    HELD(STREAM_LEGACY(stream), cuWaitExternalSemaphoresAsync, semaphores, params, count, stream);
}

CUresult cuWaitExternalSemaphoresAsync_ptsz(const CUexternalSemaphore *semaphores,
                                            const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *params,
                                            unsigned int count, CUstream stream)
{
    HELD(STREAM_PER_THREAD(stream), cuWaitExternalSemaphoresAsync_ptsz, semaphores, params, count,
         stream);
}

static CUresult answer(CUresult result, const struct stream *stream)
{
    pace_asked(stream, result);
    return result;
}

CUresult cuStreamQuery(CUstream stream)
{
    return shim.open ? answer(driver.cuStreamQuery(stream), &STREAM_LEGACY(stream))
                     : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
    return shim.open ? answer(driver.cuStreamQuery_ptsz(stream), &STREAM_PER_THREAD(stream))
                     : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuEventQuery(CUevent event)
{
    return shim.open ? answer(driver.cuEventQuery(event), NULL) : CUDA_ERROR_NOT_INITIALIZED;
}
