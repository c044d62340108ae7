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

static CUresult after(CUresult result)
{
    pace_look();
    deferred_settle();
    growth_reread(-1);
    for (unsigned device = 0; device < shim.limits.device_count; device++)
        share_collect(device);
    return result;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    return shim.open ? after(driver.cuStreamSynchronize(stream)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return shim.open ? after(driver.cuStreamSynchronize_ptsz(stream)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuEventSynchronize(CUevent event)
{
    return shim.open ? after(driver.cuEventSynchronize(event)) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuCtxSynchronize(void)
{
    return shim.open ? after(driver.cuCtxSynchronize()) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    return shim.open ? after(driver.cuCtxSynchronize_v2(context)) : CUDA_ERROR_NOT_INITIALIZED;
}
