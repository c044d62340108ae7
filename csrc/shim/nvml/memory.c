/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c -- hooks of NVML's memory info: total is the quota, used what this container holds. */
#include "shim/driver.h"
#include "shim/nvml/device.h"
#include "shim/shim.h"

#define KIB UINT64_C(1024)
#define MIB UINT64_C(1048576)

struct figures {
    uint64_t total;
    uint64_t used;
};

static uint64_t read_total(unsigned index)
{
    shim_watch_limits();
    return __atomic_load_n(&shim.ledger.limit[index], __ATOMIC_RELAXED);
}

/* After a quota was lowered, the container may hold more than it allows: then nothing is free. */
static struct figures read_figures(unsigned index)
{
    uint64_t total = read_total(index);
    uint64_t used = ledger_used(&shim.ledger, index);

    return (struct figures) {.total = total, .used = used < total ? used : total};
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct figures figures;
    unsigned index;

    ENTER_DEVICE(device, index);
    if (!memory)
        return driver.nvmlDeviceGetMemoryInfo(device, memory);
    figures = read_figures(index);
    *memory = (nvmlMemory_t) {
        .total = figures.total, .used = figures.used, .free = figures.total - figures.used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct figures figures;
    unsigned index;

    ENTER_DEVICE(device, index);
    if (!memory)
        return driver.nvmlDeviceGetMemoryInfo_v2(device, memory);
    if (memory->version != nvmlMemory_v2) /* the driver would fill a newer one for the device */
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    figures = read_figures(index);
    *memory = (nvmlMemory_v2_t) {.version = nvmlMemory_v2,
                                 .total = figures.total,
                                 .reserved = 0,
                                 .used = figures.used,
                                 .free = figures.total - figures.used};
    return NVML_SUCCESS;
}

/* BAR1, the window through which the host sees the memory: report it no larger than the memory. The
 * driver does not report use by process, so report none. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1Memory)
{
    nvmlReturn_t result;
    uint64_t total;
    unsigned index;

    ENTER_DEVICE(device, index);
    result = driver.nvmlDeviceGetBAR1MemoryInfo(device, bar1Memory);
    if (result != NVML_SUCCESS)
        return result;
    total = read_total(index);
    if (total > bar1Memory->bar1Total)
        total = bar1Memory->bar1Total;
    *bar1Memory = (nvmlBAR1Memory_t) {.bar1Total = total, .bar1Free = total, .bar1Used = 0};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device,
                                                 nvmlConfComputeMemSizeInfo_t *memInfo)
{
    nvmlReturn_t result;
    uint64_t total;
    unsigned index;

    ENTER_DEVICE(device, index);
    result = driver.nvmlDeviceGetConfComputeMemSizeInfo(device, memInfo);
    if (result != NVML_SUCCESS)
        return result;
    total = read_total(index) / KIB;
    if (memInfo->protectedMemSizeKib > total)
        memInfo->protectedMemSizeKib = total;
    if (memInfo->unprotectedMemSizeKib > total)
        memInfo->unprotectedMemSizeKib = total;
    return NVML_SUCCESS;
}

/* A device without protected memory reports a total of 0. */
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlReturn_t result;
    unsigned index;

    ENTER_DEVICE(device, index);
    result = driver.nvmlDeviceGetConfComputeProtectedMemoryUsage(device, memory);
    if (result != NVML_SUCCESS || !memory->total)
        return result;
    return nvmlDeviceGetMemoryInfo(device, memory);
}

static nvmlReturn_t limit_attributes(nvmlReturn_t result, unsigned index,
                                     nvmlDeviceAttributes_t *attributes)
{
    if (result == NVML_SUCCESS && attributes->memorySizeMB > read_total(index) / MIB)
        attributes->memorySizeMB = read_total(index) / MIB;
    return result;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    unsigned index;

    ENTER_DEVICE(device, index);
    return limit_attributes(driver.nvmlDeviceGetAttributes(device, attributes), index, attributes);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    unsigned index;

    ENTER_DEVICE(device, index);
    return limit_attributes(driver.nvmlDeviceGetAttributes_v2(device, attributes), index,
                            attributes);
}
