/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c -- hooks that create or free linear device memory.
 *
 * The same pattern throughout: charge, call the driver, settle or refund. A free takes the address
 * out of the table first, since the driver may reuse it before we return, and refunds the bytes
 * only after the driver has freed them.
 */
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/memory/entry.h"
#include "shim/cuda/memory/managed.h"
#include "shim/cuda/memory/pool_ranges.h"
#include "shim/driver.h"
#include "shim/suspension.h"

#define PITCH 512 /* rows begin at multiples of it on every device seen */

/* A request that allocates nothing: the driver returns its own error. */
static int allocates_nothing(const CUdeviceptr *address, size_t bytes)
{
    return !address || !bytes;
}

/* The end of every allocating hook. */
static CUresult conclude(struct charge *charge, CUresult result, const CUdeviceptr *address)
{
    if (likely(result == CUDA_SUCCESS)) {
        result = charge_settle(charge, ALLOCATION_LINEAR, *address);
        if (likely(result == CUDA_SUCCESS))
            return result;
        driver.cuMemFree_v2(*address);
    }
    charge_refund(charge);
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    struct charge charge;
    CUresult result;

    if (unlikely(!shim.open))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (unlikely(allocates_nothing(address, bytes)))
        return driver.cuMemAlloc_v2(address, bytes);
    result = charge_linear(&charge, bytes);
    if (unlikely(result != CUDA_SUCCESS))
        return result;
    result = driver.cuMemAlloc_v2(address, bytes);
    return conclude(&charge, result, address);
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
    struct charge charge;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (allocates_nothing(address, bytes))
        return driver.cuMemAllocManaged(address, bytes, flags);
    result = charge_linear(&charge, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = driver.cuMemAllocManaged(address, bytes, flags);
    managed_note();
    return conclude(&charge, result, address);
}

static size_t rows_size(size_t width, size_t height)
{
    size_t bytes;

    return __builtin_mul_overflow(width, height, &bytes) ? SIZE_MAX : bytes;
}

/* The expected size of rows of *width* bytes; the driver then reports the real one. A narrow row
 * can take hundreds of times its width, so that is charged before the call and not after. */
static size_t rows_expected(size_t width, size_t height)
{
    return width > SIZE_MAX - PITCH ? SIZE_MAX
                                    : rows_size((width + PITCH - 1) / PITCH * PITCH, height);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                            unsigned int element)
{
    struct charge charge;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!pitch || allocates_nothing(address, width) || !height)
        return driver.cuMemAllocPitch_v2(address, pitch, width, height, element);
    result = charge_linear(&charge, rows_expected(width, height));
    if (result != CUDA_SUCCESS)
        return result;
    result = driver.cuMemAllocPitch_v2(address, pitch, width, height, element);
    if (result == CUDA_SUCCESS &&
        charge_adjust(&charge, rows_size(*pitch, height)) != CUDA_SUCCESS) {
        driver.cuMemFree_v2(*address);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return conclude(&charge, result, address);
}

/* Free linear memory that may be charged on other devices, too. */
static CUresult free_moved(const struct allocation *allocation)
{
    struct managed_charges moved;
    CUresult result;

    managed_take(allocation->address, &moved);
    result = driver.cuMemFree_v2(allocation->address);
    if (result == CUDA_SUCCESS)
        managed_release(&moved);
    entry_freed(allocation, result);
    if (result != CUDA_SUCCESS)
        managed_restore(&moved);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    struct allocation allocation;
    CUresult result;
    int known;

    if (unlikely(!shim.open))
        return CUDA_ERROR_NOT_INITIALIZED;
    suspension_note();
    known = allocations_take(ALLOCATION_LINEAR, address, &allocation);
    if (unlikely(!known))
        return pool_ranges_free(address);
    if (unlikely(__atomic_load_n(&managed_moved, __ATOMIC_SEQ_CST)))
        return free_moved(&allocation);
    result = driver.cuMemFree_v2(address);
    entry_freed(&allocation, result);
    return result;
}
