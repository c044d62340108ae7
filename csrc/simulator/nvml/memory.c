/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c -- total and used memory of a device. */
#include "api.h"
#include "source.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* The sum over live processes can exceed the total for an instant, while a dead one is reaped. */
static uint64_t used_bytes(nvmlDevice_t device)
{
    uint64_t used = source_used_bytes(device->index);

    return used < device->memory_bytes ? used : device->memory_bytes;
}

/* For a device in MIG mode the driver reports the sum of its instances only to privileged callers,
 * and programs are assumed to be unprivileged.
 *
 * The old form has no field for memory reserved by the firmware, and counts it as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER_ANY(device);
    REQUIRE(memory);
    if (source_mig_is_hidden(device->index))
        return NVML_ERROR_NO_PERMISSION;
    uint64_t used = used_bytes(device);
    memory->total = device->memory_bytes + device->reserved_bytes;
    memory->used = used + device->reserved_bytes;
    memory->free = device->memory_bytes - used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER_ANY(device);
    REQUIRE(memory);
    REQUIRE_VERSION(memory, nvmlMemory_v2);
    if (source_mig_is_hidden(device->index))
        return NVML_ERROR_NO_PERMISSION;
    uint64_t used = used_bytes(device), total = device->memory_bytes;
    struct cgroup_figures own = {0};
    if (source_own_limit(device->index, &own) && own.hard < total) {
        total = own.hard;
        used = own.used < total ? own.used : total;
    }
    memory->total = total + device->reserved_bytes;
    memory->reserved = device->reserved_bytes;
    memory->used = used;
    memory->free = total - used;
    return NVML_SUCCESS;
}

static nvmlReturn_t limits_result(int error)
{
    return error == EINVAL   ? NVML_ERROR_INVALID_ARGUMENT
           : error == ENOSPC ? NVML_ERROR_INSUFFICIENT_RESOURCES
           : error           ? NVML_ERROR_OPERATING_SYSTEM
                             : NVML_SUCCESS;
}

/* The only setting that root may change, since it belongs to the cgroup, not to the device. */
nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    ENTER_DEVICE(device);
    REQUIRE(limits);
    if (!source_has_limits() || source_mig(device->index))
        return NVML_ERROR_NOT_SUPPORTED;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    if (!limits->nameSpace || limits->softLimit > limits->hardLimit ||
        (limits->hardLimit != NVML_DEVICE_MEMORY_LIMIT_MAX &&
         limits->hardLimit > device->memory_bytes + device->reserved_bytes))
        return NVML_ERROR_INVALID_ARGUMENT;
    return limits_result(
        source_set_limits(device->index, limits->nameSpace, limits->softLimit, limits->hardLimit));
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    struct cgroup_figures figures = {0};
    nvmlReturn_t result;

    ENTER_DEVICE(device);
    REQUIRE(limits);
    if (!source_has_limits() || source_mig(device->index))
        return NVML_ERROR_NOT_SUPPORTED;
    REQUIRE(limits->nameSpace);
    result = limits_result(source_get_limits(device->index, limits->nameSpace, &figures));
    if (result == NVML_SUCCESS) {
        limits->softLimit = figures.soft;
        limits->hardLimit = figures.hard;
        limits->currentUsed = figures.used;
    }
    return result;
}

/* The window is as large as the memory, rounded up to a power of two, as on real boards. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1)
{
    uint64_t total = 256ULL << 20;

    ENTER_ANY(device);
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
