/* SPDX-License-Identifier: Apache-2.0 */
/* share.c -- exports and imports of allocations; see share.h. */
#include "shim/cuda/memory/share.h"
#include "core/blocks.h"
#include "shim/cuda/memory/charge.h"
#include "shim/driver.h"
#include "core/shared_memory.h"
#include "core/log.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static link_t make_export(uint64_t key, unsigned device, uint64_t bytes)
{
    link_t link = shared_memory_export(&shim.region, key, device, bytes);

    if (!link)
        log_info("refused to share %llu bytes of device %u: too much is shared already",
                 (unsigned long long) bytes, device);
    return link;
}

uint16_t share_export(const struct allocation *allocation, uint64_t key)
{
    /* The block of a small one may be refunded before importers close it, so charge one more. */
    uint64_t added = allocation->in_block ? BLOCKS_BYTES : 0;
    link_t link;

    if (allocation->link)
        return allocation->link; /* the driver returns the same handle again */
    if (added && charge_device(allocation->device, added) != CUDA_SUCCESS)
        return 0;
    link = make_export(key, allocation->device, added ? added : allocation->bytes);
    if (link && allocations_set_link(allocation->kind, allocation->address, link))
        return link;
    /* It may have been freed meanwhile, or another thread was faster. */
    shared_memory_cancel_export(&shim.region, link);
    if (added)
        ledger_refund(&shim.ledger, allocation->device, added);
    return link;
}

uint64_t share_ipc_key(const CUipcMemHandle *handle)
{
    return shared_memory_key(handle, sizeof(*handle));
}

uint16_t share_offer(uint16_t link, unsigned device, uint64_t bytes, const void *shareable,
                     CUmemAllocationHandleType type)
{
    int is_carried = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    uint64_t key = is_carried ? shared_memory_new_key(&shim.region)
                              : shared_memory_key(shareable, sizeof(CUmemFabricHandle));
    link_t made = link ? link : make_export(key, device, bytes);
    uint64_t has = made ? shared_memory_key_of(&shim.region, made) : 0;
    int done = made != 0;

    if (made && is_carried)
        done = shared_memory_carry(&shim.region, has, *(const int *) shareable);
    else if (made && !shared_memory_same_key(has, key)) /* its importers cannot find the export */
        done = shared_memory_lose_track(&shim.region, has);
    if (!done && !link)
        shared_memory_cancel_export(&shim.region, made);
    return done ? made : 0;
}

uint16_t share_import(uint64_t key)
{
    int paid;
    link_t link = shared_memory_import(&shim.region, key, &paid);

    if (link && !paid) {
        shared_memory_end_import(&shim.region, link);
        link = 0;
    }
    return link;
}

void *share_hold(struct shared *shared, void *shareable, CUmemAllocationHandleType type)
{
    shared->type = CU_MEM_HANDLE_TYPE_NONE;
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        shared->descriptor = fcntl((int) (intptr_t) shareable, F_DUPFD_CLOEXEC, 0);
        if (shared->descriptor >= 0)
            shared->type = type;
        return (void *) (intptr_t) shared->descriptor;
    }
    if (type != CU_MEM_HANDLE_TYPE_FABRIC || !shareable)
        return shareable;
    shared->type = type;
    memcpy(&shared->fabric, shareable, sizeof(shared->fabric));
    return &shared->fabric;
}

void share_let_go(struct shared *shared)
{
    if (shared->type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        close(shared->descriptor);
}

void share_find(const struct shared *shared, struct allocation *opened)
{
    struct shared_memory_match match = {0};

    if (shared->type == CU_MEM_HANDLE_TYPE_FABRIC)
        opened->link = share_import(shared_memory_key(&shared->fabric, sizeof(shared->fabric)));
    else if (shared->type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
             shared_memory_match(&shim.region, shared->descriptor, &match))
        opened->link = share_import(match.key);
    if (!opened->link && match.bytes) {
        opened->bytes = match.bytes;
        opened->device = (uint8_t) match.device;
    }
}

CUresult share_pay(struct allocation *opened)
{
    CUresult result;
    CUdevice ordinal;
    size_t bytes = 0;

    if (opened->link)
        return CUDA_SUCCESS;
    result = driver.cuMemGetAddressRange_v2(NULL, &bytes, opened->address);
    if (result != CUDA_SUCCESS)
        return result;
    if (driver.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                     opened->address) == CUDA_SUCCESS &&
        shim_device(ordinal) >= 0)
        opened->device = (uint8_t) shim_device(ordinal);
    result = charge_device(opened->device, charge_size(bytes));
    if (result == CUDA_SUCCESS)
        opened->bytes = charge_size(bytes);
    return result;
}

CUresult share_take_back(void *shareable, CUmemAllocationHandleType type)
{
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        close(*(int *) shareable);
        *(int *) shareable = -1;
    } else if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        memset(shareable, 0, sizeof(CUmemFabricHandle));
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}
