/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c -- NVML's memory figures: total is the quota, used what this container holds. */
#include "driver.h"
#include "nvml/device.h"
#include "shim.h"

struct figures {
    uint64_t total;
    uint64_t used;
};

/* False if the driver must answer: not started, no place for the answer, or no device of ours. */
static int read_figures(nvmlDevice_t device, const void *memory, struct figures *figures)
{
    int index = memory && nvml_is_open() ? nvml_device_index(device) : -1;
    uint64_t used;

    if (index < 0)
        return 0;
    shim_watch_limits();
    figures->total = __atomic_load_n(&shim.ledger.limit[index], __ATOMIC_RELAXED);
    used = ledger_used(&shim.ledger, (unsigned) index);
    figures->used = used < figures->total ? used : figures->total;
    return 1;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct figures figures;

    if (!shim_loaded())
        return NVML_ERROR_UNINITIALIZED;
    if (!read_figures(device, memory, &figures))
        return driver.nvmlDeviceGetMemoryInfo(device, memory);
    *memory = (nvmlMemory_t) {
        .total = figures.total, .used = figures.used, .free = figures.total - figures.used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct figures figures;

    if (!shim_loaded())
        return NVML_ERROR_UNINITIALIZED;
    if ((memory && memory->version != nvmlMemory_v2) || !read_figures(device, memory, &figures))
        return driver.nvmlDeviceGetMemoryInfo_v2(device, memory);
    *memory = (nvmlMemory_v2_t) {.version = nvmlMemory_v2,
                                 .total = figures.total,
                                 .reserved = 0,
                                 .used = figures.used,
                                 .free = figures.total - figures.used};
    return NVML_SUCCESS;
}
