/* SPDX-License-Identifier: Apache-2.0 */
/* share.c -- exports and imports of allocations; see share.h. */
#include "cuda/share.h"
#include "cuda/charge.h"
#include "driver.h"
#include "links.h"
#include "log.h"

#include <string.h>
#include <unistd.h>

uint64_t share_key(unsigned device, uint64_t bytes)
{
    const uint64_t described[] = {device, bytes};

    return links_key(described, sizeof(described));
}

uint16_t share_offer(uint64_t key, unsigned device, uint64_t bytes, unsigned flags)
{
    link_t link = links_export(&shim.region, key, device, bytes, flags);

    if (!link)
        log_info("refused to share %llu bytes of device %u: too much is shared already",
                 (unsigned long long) bytes, device);
    return link;
}

int share_export(const struct allocation *allocation, uint64_t key, unsigned flags)
{
    link_t link;

    if (allocation->link)
        return 1; /* the driver gives the same handle out again */
    link = share_offer(key, allocation->device, allocation->bytes, flags);
    /* It may have been freed meanwhile, or another thread was faster. */
    if (link && !allocations_set_link(allocation->kind, allocation->address, link))
        links_cancel_export(&shim.region, link);
    return link != 0;
}

uint16_t share_import(uint64_t key)
{
    int paid;
    link_t link = links_import(&shim.region, key, &paid);

    if (link && !paid) {
        links_end_import(&shim.region, link);
        link = 0;
    }
    return link;
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

int share_end(const struct allocation *allocation)
{
    if (allocation->bytes)
        return links_end_export(&shim.region, allocation->link);
    links_end_import(&shim.region, allocation->link);
    return 0;
}

int share_collect(unsigned device)
{
    uint64_t bytes = links_collect(&shim.region, device);

    if (bytes)
        ledger_refund(&shim.ledger, device, bytes);
    return bytes != 0;
}
