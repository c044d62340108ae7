/* SPDX-License-Identifier: Apache-2.0 */
/* process.c -- hooks of NVML's process lists, which show this container's processes.
 *
 * They have the pids that the processes see themselves, and the memory in the ledger; the driver is
 * not called. All are on the compute list. The other lists are empty, not refused, because clients
 * give up on all lists if one is refused.
 */
#include "shim/nvml/process.h"
#include "shim/driver.h"
#include "shim/nvml/device.h"
#include "core/pid.h"
#include "shim/shim.h"
#include "core/slots.h"

#include <stdio.h>

static unsigned count_slots(void)
{
    uint32_t end = __atomic_load_n(&shim.region.usage->high_water, __ATOMIC_ACQUIRE);

    return end <= REGION_SLOTS ? end : REGION_SLOTS;
}

/* A slot's process and its memory on a device; 0 if there is none, or it holds nothing there. */
static int read_slot(unsigned index, unsigned place, struct nvml_process *process)
{
    const struct usage_slot *slot = &shim.region.usage->slots[place];

    *process = (struct nvml_process) {
        .pid = __atomic_load_n(&slot->pid, __ATOMIC_ACQUIRE),
        .bytes = region_held(&shim.region, index, place) +
                 __atomic_load_n(&shim.region.quota->extra[index][place], __ATOMIC_RELAXED),
        .pid_namespace = (uint32_t) slot->pid_namespace,
        .comm = slot->name,
    };
    return process->pid && process->bytes && !slot->state;
}

unsigned nvml_each_process(unsigned index, unsigned room, void *entries, nvml_describe *describe)
{
    unsigned count = 0;

    slots_reap(&shim.region);
    for (unsigned place = 0, end = count_slots(); place < end; place++) {
        struct nvml_process process;

        if (!read_slot(index, place, &process))
            continue;
        if (count < room)
            describe(entries, count, &process);
        count++;
    }
    return count;
}

int nvml_is_ours(uint32_t pid)
{
    const struct usage_slot *slots = shim.region.usage->slots;

    for (unsigned place = 0, end = count_slots(); pid && place < end; place++)
        if (__atomic_load_n(&slots[place].pid, __ATOMIC_ACQUIRE) == pid &&
            slots[place].pid_namespace == PID_NAMESPACE_HOST)
            return pid_namespace() == PID_NAMESPACE_HOST;
    return 0;
}

/* The name in the slot of our process *pid*; NULL if there is none. */
static const char *find_comm(uint32_t pid)
{
    const struct usage_slot *slots = shim.region.usage->slots;

    for (unsigned place = 0, end = count_slots(); pid && place < end; place++)
        if (__atomic_load_n(&slots[place].pid, __ATOMIC_ACQUIRE) == pid)
            return slots[place].name;
    return NULL;
}

/* Also find a name for our processes that are not in this one's /proc: nvidia-smi 470 omits a
 * process without a name. */
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    nvmlReturn_t result;
    const char *comm;

    ENTER();
    result = driver.nvmlSystemGetProcessName(pid, name, length);
    if (result != NVML_ERROR_NOT_FOUND && result != NVML_ERROR_NO_PERMISSION)
        return result;
    comm = find_comm(pid);
    if (!comm || !name)
        return result;
    snprintf(name, length, "%.16s", comm);
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_fit(unsigned int *count, unsigned needed, const void *array)
{
    int fits = needed <= *count && (array || !needed);

    *count = needed;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static void describe_v1(void *entries, size_t place, const struct nvml_process *process)
{
    ((nvmlProcessInfo_v1_t *) entries)[place] = (nvmlProcessInfo_v1_t) {
        .pid = process->pid,
        .usedGpuMemory = process->bytes,
    };
}

static void describe_v2(void *entries, size_t place, const struct nvml_process *process)
{
    ((nvmlProcessInfo_v2_t *) entries)[place] = (nvmlProcessInfo_v2_t) {
        .pid = process->pid,
        .usedGpuMemory = process->bytes,
        .gpuInstanceId = NO_INSTANCE,
        .computeInstanceId = NO_INSTANCE,
    };
}

static void describe_detail(void *entries, size_t place, const struct nvml_process *process)
{
    ((nvmlProcessDetail_v1_t *) entries)[place] = (nvmlProcessDetail_v1_t) {
        .pid = process->pid,
        .usedGpuMemory = process->bytes,
        .gpuInstanceId = NO_INSTANCE,
        .computeInstanceId = NO_INSTANCE,
    };
}

static nvmlReturn_t list_compute(unsigned index, unsigned int *count, void *entries,
                                 nvml_describe *describe)
{
    unsigned room = entries ? *count : 0;

    return nvml_fit(count, nvml_each_process(index, room, entries, describe), entries);
}

static nvmlReturn_t list_none(unsigned index, unsigned int *count, void *entries,
                              nvml_describe *describe)
{
    (void) index;
    (void) describe;
    return nvml_fit(count, 0, entries);
}

/* Without a count the driver returns its own error; it writes to nothing but the count. */
#define LIST(name, entry, list, describe)                                                     \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, entry *infos)                 \
    {                                                                                         \
        unsigned index;                                                                       \
                                                                                              \
        ENTER_DEVICE(device, index);                                                          \
        return count ? list(index, count, infos, describe) : driver.name(device, NULL, NULL); \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, list_compute, describe_v1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, list_compute, describe_v2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, list_compute, describe_v2)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, list_none, describe_v1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, list_none, describe_v2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, list_none, describe_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, list_none, describe_v1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, list_none, describe_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, list_none, describe_v2)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_t *plist)
{
    unsigned index;

    ENTER_DEVICE(device, index);
    if (!plist)
        return driver.nvmlDeviceGetRunningProcessDetailList(device, plist);
    if (plist->version != nvmlProcessDetailList_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    switch (plist->mode) {
    case 0: /* compute */
    case 3: /* all */
        return list_compute(index, &plist->numProcArrayEntries, plist->procArray, describe_detail);
    case 1: /* graphics */
    case 2: /* MPS */
        return list_none(index, &plist->numProcArrayEntries, plist->procArray, describe_detail);
    default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
}
