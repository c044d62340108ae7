/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c -- how much memory a device has and how much of it is taken. */
#include "api.h"
#include "source.h"

#include <string.h>

/* What live processes hold can pass the total for an instant, while a dead one is reaped. */
static uint64_t used_bytes(nvmlDevice_t device)
{
    uint64_t used = source_used_bytes(device->index);

    return used < device->memory_bytes ? used : device->memory_bytes;
}

/* Of a device in MIG mode the driver tells the sum of its instances only with privileges, which
 * programs are taken not to have.
 *
 * The old form has no field for what the firmware keeps, and counts it as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER_DEVICE(device);
    REQUIRE(memory);
    if (source_mig(device->index))
        return NVML_ERROR_NO_PERMISSION;
    uint64_t used = used_bytes(device);
    memory->total = device->memory_bytes + device->reserved_bytes;
    memory->used = used + device->reserved_bytes;
    memory->free = device->memory_bytes - used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER_DEVICE(device);
    REQUIRE(memory);
    REQUIRE_VERSION(memory, nvmlMemory_v2);
    if (source_mig(device->index))
        return NVML_ERROR_NO_PERMISSION;
    uint64_t used = used_bytes(device);
    memory->total = device->memory_bytes + device->reserved_bytes;
    memory->reserved = device->reserved_bytes;
    memory->used = used;
    memory->free = device->memory_bytes - used;
    return NVML_SUCCESS;
}

/* The window is as large as the memory, rounded up to a power of two, as on real boards. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1)
{
    uint64_t total = 256ULL << 20;

    ENTER_DEVICE(device);
    REQUIRE(bar1);
    while (total < device->memory_bytes)
        total *= 2;
    bar1->bar1Total = total;
    bar1->bar1Used = 1ULL << 20;
    bar1->bar1Free = total - bar1->bar1Used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER_DEVICE(device);
    REQUIRE(memory);
    memset(memory, 0, sizeof(*memory));
    return NVML_SUCCESS;
}

/* No memory is protected. */
nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device,
                                                 nvmlConfComputeMemSizeInfo_t *sizes)
{
    ENTER_DEVICE(device);
    REQUIRE(sizes);
    *sizes = (nvmlConfComputeMemSizeInfo_t) {.unprotectedMemSizeKib = device->memory_bytes / 1024};
    return NVML_SUCCESS;
}
