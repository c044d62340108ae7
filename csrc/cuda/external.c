/* SPDX-License-Identifier: Apache-2.0 */
/* external.c -- hooks of memory that another API allocated: who imports it pays for it.
 *
 * It is there already, so the driver is asked first, and what does not fit is closed again. Its
 * buffers and arrays are that memory, and take nothing more.
 */
#include "cuda/charge.h"
#include "driver.h"

CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    struct charge charge;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    result = driver.cuImportExternalMemory(memory, description);
    if (result != CUDA_SUCCESS)
        return result;
    result = charge_current(&charge, description->size);
    if (result == CUDA_SUCCESS) {
        result = charge_settle(&charge, ALLOCATION_EXTERNAL, (uint64_t) (uintptr_t) *memory);
        if (result == CUDA_SUCCESS)
            return result;
        charge_refund(&charge);
    }
    driver.cuDestroyExternalMemory(*memory);
    return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    struct allocation allocation;
    CUresult result;
    int known;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    known = allocations_take(ALLOCATION_EXTERNAL, (uint64_t) (uintptr_t) memory, &allocation);
    result = driver.cuDestroyExternalMemory(memory);
    if (known && result == CUDA_SUCCESS)
        charge_release(&allocation);
    else if (known)
        charge_restore(&allocation);
    return result;
}
