/* SPDX-License-Identifier: Apache-2.0 */
/* external.c -- hooks of memory that another API allocated: who imports it pays for it.
 *
 * Its buffers and arrays are that memory, and take nothing more. A descriptor may also have come
 * from CUDA, of this container: that is paid for. Which memory it is nobody can tell, since the
 * size is the program's word; so no export is given up while it is open.
 */
#include "carrier.h"
#include "cuda/charge.h"
#include "cuda/export.h"
#include "cuda/share.h"
#include "driver.h"
#include "links.h"

/* Whether a descriptor is physical memory that CUDA has exported. */
static int is_from_cuda(int descriptor)
{
    CUmemGenericAllocationHandle handle;

    if (driver.cuMemImportFromShareableHandle(&handle, (void *) (intptr_t) descriptor,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) !=
        CUDA_SUCCESS)
        return 0;
    driver.cuMemRelease(handle);
    return 1;
}

/* Memory that CUDA has exported: with a link, its owner pays. */
static CUresult find_owner(struct charge *charge, int descriptor, uint64_t size)
{
    link_t matching;

    carrier_learn(&shim.region, descriptor);
    charge->link = links_import_unknown(&shim.region);
    matching = share_import(share_key(charge->device, size));
    if (charge->link && !matching) {
        links_end_import(&shim.region, charge->link);
        charge->link = 0;
        return export_keep_all() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    links_end_import(&shim.region, matching);
    return charge->link ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Find out who pays, and charge this process if it does. */
static CUresult pay(struct charge *charge, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    CUresult result = charge_find_current(charge, description->size);

    if (result != CUDA_SUCCESS)
        return result;
    if (description->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD &&
        is_from_cuda(description->handle.fd))
        result = find_owner(charge, description->handle.fd, description->size);
    if (charge->link)
        charge->bytes = 0;
    return result == CUDA_SUCCESS ? charge_found(charge) : result;
}

CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    struct charge charge;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!memory || !description || !description->size)
        return driver.cuImportExternalMemory(memory, description);
    charge.link = 0;
    result = pay(&charge, description);
    if (result == CUDA_SUCCESS) {
        result = driver.cuImportExternalMemory(memory, description);
        if (result == CUDA_SUCCESS) {
            result = charge_settle(&charge, ALLOCATION_EXTERNAL, (uint64_t) (uintptr_t) *memory);
            if (result == CUDA_SUCCESS)
                return result;
            driver.cuDestroyExternalMemory(*memory);
        }
        charge_refund(&charge);
    }
    links_end_import(&shim.region, charge.link);
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
        charge_freed(&allocation, result);
    return result;
}
