/* SPDX-License-Identifier: Apache-2.0 */
/* handle.c -- exporting and importing physical memory. */
#include "cuda/handle.h"

#include <string.h>

#include "cuda/physical.h"
#include "share.h"

#define FABRIC_MAGIC UINT64_C(0x7076677566616231)

struct fabric {
    uint64_t magic;
    uint64_t id;
    uint32_t share;
    uint32_t unused[11];
};

_Static_assert(sizeof(struct fabric) == sizeof(CUmemFabricHandle), "it fills the handle");

CUresult handle_export(int share, CUmemAllocationHandleType type, void *out)
{
    struct fabric fabric = {.magic = FABRIC_MAGIC, .share = (uint32_t) share};
    int fd;

    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        fabric.id = share_read(process.machine, share)->id;
        memcpy(out, &fabric, sizeof(fabric));
        return CUDA_SUCCESS;
    }
    fd = share_descriptor(process.machine, share);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *) out = fd;
    return CUDA_SUCCESS;
}

static bool is_visible(const struct machine_share *record)
{
    if (record->kind == SHARE_HOST)
        return true;
    for (int i = 0; i < process.device_count; i++)
        if (process.devices[i] == (int) record->device)
            return true;
    return false;
}

CUresult handle_import(void *handle, CUmemAllocationHandleType type, int *share, uint64_t *id)
{
    struct fabric fabric;

    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        memcpy(&fabric, handle, sizeof(fabric));
        REQUIRE(fabric.magic == FABRIC_MAGIC && fabric.share < MACHINE_SHARES);
        *share = (int) fabric.share;
        *id = fabric.id;
        machine_reap(process.machine, true);
        REQUIRE(atomic_load(&share_read(process.machine, *share)->state) == SHARE_OWNED);
    } else {
        *share = share_of_descriptor(process.machine, (int) (uintptr_t) handle);
        REQUIRE(*share != SHARE_NONE);
        *id = share_read(process.machine, *share)->id;
    }
    return is_visible(share_read(process.machine, *share)) ? CUDA_SUCCESS
                                                           : CUDA_ERROR_INVALID_DEVICE;
}

static bool is_single_type(CUmemAllocationHandleType type)
{
    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || type == CU_MEM_HANDLE_TYPE_FABRIC;
}

/* Release 615 prepares memory for its export when it is created, and not again when the process is
 * restored. */
static bool has_lost_export(const struct physical *physical)
{
    const struct machine *machine = process.machine;

    return physical->restores != machine->own->restores &&
           strncmp(machine->config.driver_release, "615.", 4) == 0;
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType,
                                      unsigned long long flags)
{
    const struct physical *physical;

    ENTER();
    physical = physical_find(handle);
    REQUIRE(shareableHandle && physical && !flags && is_single_type(handleType));
    REQUIRE(physical->properties.requestedHandleTypes & handleType);
    REQUIRE(!has_lost_export(physical));
    return handle_export(physical->share, handleType, shareableHandle);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType)
{
    struct physical *physical;
    CUresult result;
    uint64_t id;
    int share;

    ENTER();
    REQUIRE(handle && is_single_type(shHandleType));
    REQUIRE(osHandle || shHandleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    result = handle_import(osHandle, shHandleType, &share, &id);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(share_read(process.machine, share)->kind == SHARE_PHYSICAL ||
            share_read(process.machine, share)->kind == SHARE_HOST);
    result = physical_import(share, id, shHandleType, &physical);
    if (result == CUDA_SUCCESS)
        *handle = physical_handle(physical);
    return result;
}
