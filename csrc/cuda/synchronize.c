/* SPDX-License-Identifier: Apache-2.0 */
/* synchronize.c -- hooks of what waits for the device: there the driver lets go of memory.
 *
 * Pools give up what is over their threshold when somebody synchronises, and other processes of the
 * container must see it, even if this one asks for nothing more. So must they see that what others
 * had open of freed memory is closed. For a program that has no pools, frees nothing on streams and
 * shares nothing, it is a few loads behind a call that waits.
 */
#include "cuda/deferred.h"
#include "cuda/growth.h"
#include "cuda/pace.h"
#include "cuda/share.h"

static CUresult after(CUresult result, const struct stream *stream, int all)
{
    pace_waited(stream, all && result == CUDA_SUCCESS);
    deferred_settle();
    growth_reread(-1);
    for (unsigned device = 0; device < shim.limits.device_count; device++)
        share_collect(device);
    return result;
}

/* *stream*: what is waited for; NULL and *all*: everything that the calling thread has given. */
#define SYNCHRONIZE(stream, all, symbol, ...)                  \
    do {                                                       \
        if (unlikely(!shim.open))                              \
            return CUDA_ERROR_NOT_INITIALIZED;                 \
        pace_wait(stream);                                     \
        return after(driver.symbol(__VA_ARGS__), stream, all); \
    } while (0)

CUresult cuStreamSynchronize(CUstream stream)
{
    SYNCHRONIZE(&STREAM_LEGACY(stream), 1, cuStreamSynchronize, stream);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    SYNCHRONIZE(&STREAM_PER_THREAD(stream), 1, cuStreamSynchronize_ptsz, stream);
}

CUresult cuEventSynchronize(CUevent event)
{
    SYNCHRONIZE(NULL, 0, cuEventSynchronize, event);
}

CUresult cuCtxSynchronize(void)
{
    SYNCHRONIZE(NULL, 1, cuCtxSynchronize);
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    SYNCHRONIZE(NULL, 0, cuCtxSynchronize_v2, context);
}
