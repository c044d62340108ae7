/* SPDX-License-Identifier: Apache-2.0 */
/* external.c -- hooks that import memory of another API; the importing process pays for it.
 *
 * Buffers and arrays mapped from it take no further memory. A descriptor may also carry memory that
 * this container has exported with CUDA: that is charged already.
 */
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/memory/entry.h"
#include "shim/cuda/memory/share.h"
#include "shim/driver.h"
#include "core/shared_memory.h"

#include <unistd.h>

/* Find out whether another process pays, and charge this one if not. */
static CUresult pay(struct charge *charge, uint64_t size, const struct shared *shared)
{
    struct allocation opened = {.bytes = 0};
    CUresult result = charge_find_current(charge, size);

    if (result != CUDA_SUCCESS)
        return result;
    share_find(shared, &opened);
    charge->link = opened.link;
    if (opened.link)
        charge->bytes = 0;
    else if (charge->bytes < opened.bytes) /* the program's size may be too small */
        charge->bytes = opened.bytes;
    return charge_found(charge);
}

static CUresult import(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *held,
                       const struct shared *shared)
{
    struct charge charge = {.link = 0};
    CUresult result = pay(&charge, held->size, shared);

    if (result == CUDA_SUCCESS) {
        result = driver.cuImportExternalMemory(memory, held);
        if (result == CUDA_SUCCESS) {
            result = charge_settle(&charge, ALLOCATION_EXTERNAL, (uint64_t) (uintptr_t) *memory);
            if (result == CUDA_SUCCESS)
                return result;
            driver.cuDestroyExternalMemory(*memory);
        }
        charge_refund(&charge);
    }
    shared_memory_end_import(&shim.region, charge.link);
    return result;
}

/* After an import the driver owns the descriptor. It gets a copy, which the program cannot change
 * while we look it up; then the program's descriptor is closed. */
CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC held;
    struct shared shared = {.type = CU_MEM_HANDLE_TYPE_NONE};
    CUresult result;
    int given;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!memory || !description || !description->size)
        return driver.cuImportExternalMemory(memory, description);
    held = *description;
    given = held.handle.fd;
    if (held.type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
        held.handle.fd = (int) (intptr_t) share_hold(&shared, (void *) (intptr_t) given,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    result = import(memory, &held, &shared);
    if (result != CUDA_SUCCESS)
        share_let_go(&shared);
    else if (shared.type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        close(given);
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
    if (known)
        entry_freed(&allocation, result);
    return result;
}
