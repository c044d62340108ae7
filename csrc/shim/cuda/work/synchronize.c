/* SPDX-License-Identifier: Apache-2.0 */
/* synchronize.c -- hooks of calls that wait for the device, during which the driver frees memory.
 *
 * Pools release memory beyond their threshold when the program synchronises, and other processes of
 * the container must see that, even if this one asks for nothing more. They must also see that
 * importers have closed freed memory. For a program that has no pools, frees nothing on streams and
 * shares nothing, this costs a few loads after a call that waits.
 */
#include "shim/cuda/memory/deferred_free.h"
#include "shim/cuda/memory/pool_charge.h"
#include "shim/cuda/work/pace.h"
#include "shim/cuda/memory/link.h"
#include "shim/suspension.h"

#include <pthread.h>

static void leave(void *none)
{
    (void) none;
    suspension_leave();
}

static CUresult after(CUresult result, const struct stream *stream, int all)
{
    pace_waited(stream, all && result == CUDA_SUCCESS);
    deferred_free_settle();
    pool_charge_reread(-1);
    link_collect_all();
    return result;
}

/* A thread that is cancelled in the driver does not wait any more: its count is taken back.
 * Wait for *stream*; NULL and *all*: for everything that the calling thread has launched. */
#define SYNCHRONIZE(stream, all, symbol, ...)  \
    do {                                       \
        CUresult result;                       \
                                               \
        if (unlikely(!shim.open))              \
            return CUDA_ERROR_NOT_INITIALIZED; \
        pace_wait(stream);                     \
        suspension_note();                     \
        suspension_enter();                    \
        pthread_cleanup_push(leave, NULL);     \
        result = driver.symbol(__VA_ARGS__);   \
        pthread_cleanup_pop(1);                \
        return after(result, stream, all);     \
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
