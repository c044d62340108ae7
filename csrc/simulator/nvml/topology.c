/* SPDX-License-Identifier: Apache-2.0 */
/* topology.c -- connections of devices to each other and to the host.
 *
 * Devices 0 and 1, 2 and 3, ... share a PCIe switch; the NUMA node is machine.conf's. Boards
 * with NVLink are all on one NVSwitch, if the machine has another board of their kind.
 */
/* For cpu_set_t. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "topology.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bus of the PCIe switch; no device gets this bus. */
#define SWITCH_BUS 0xfe

static nvmlGpuTopologyLevel_t level_between(nvmlDevice_t a, nvmlDevice_t b)
{
    if (a == b)
        return NVML_TOPOLOGY_INTERNAL;
    if (a->numa_node != b->numa_node)
        return NVML_TOPOLOGY_SYSTEM;
    return a->index / 2 == b->index / 2 ? NVML_TOPOLOGY_SINGLE : NVML_TOPOLOGY_NODE;
}

static bool same_fabric(nvmlDevice_t a, nvmlDevice_t b)
{
    return a != b && a->nvlinks && b->nvlinks && a->capability_major == b->capability_major;
}

unsigned int topology_active_links(nvmlDevice_t device)
{
    for (unsigned int i = 0; i < nvml_device_count(); i++) {
        if (same_fabric(device, nvml_device(i)))
            return device->nvlinks;
    }
    return 0;
}

unsigned int topology_nvlink_version(nvmlDevice_t device)
{
    return device->capability_major - 5; /* 3 on Ampere, 4 on Hopper, 5 on Blackwell */
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t *level)
{
    ENTER_DEVICE(device1);
    ENTER_DEVICE(device2);
    REQUIRE(level);
    *level = level_between(device1, device2);
    return NVML_SUCCESS;
}

/* Without an array returns the number of devices; else fills as many as fit. */
nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int *count, nvmlDevice_t *devices)
{
    unsigned int found = 0;

    ENTER_DEVICE(device);
    REQUIRE(count);
    for (unsigned int i = 0; i < nvml_device_count(); i++) {
        nvmlDevice_t other = nvml_device(i);

        if (other == device || level_between(device, other) != level)
            continue;
        if (devices && *count && found == *count)
            break;
        if (devices && *count)
            devices[found] = other;
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count,
                                         nvmlDevice_t *devices)
{
    unsigned int found = 0;

    (void) cpu;
    ENTER();
    REQUIRE(count);
    for (unsigned int i = 0; i < nvml_device_count(); i++) {
        if (devices && *count && found == *count)
            break;
        if (devices && *count)
            devices[found] = nvml_device(i);
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                    nvmlGpuP2PCapsIndex_t capability, nvmlGpuP2PStatus_t *status)
{
    ENTER_DEVICE(device1);
    ENTER_DEVICE(device2);
    if (!status || (unsigned int) capability >= NVML_P2P_CAPS_INDEX_UNKNOWN)
        return NVML_ERROR_INVALID_ARGUMENT;
    bool over_links =
        capability == NVML_P2P_CAPS_INDEX_NVLINK || capability == NVML_P2P_CAPS_INDEX_ATOMICS;
    *status = over_links && !same_fabric(device1, device2) ? NVML_P2P_STATUS_NOT_SUPPORTED
                                                           : NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
}

/* The processors of the device's NUMA node; all of them if the host has no such node. */
static void near_processors(nvmlDevice_t device, cpu_set_t *set)
{
    char path[80];
    unsigned int first, last;
    int mark = ',';

    CPU_ZERO(set);
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/cpulist", device->numa_node);
    FILE *file = fopen(path, "re");
    while (file && mark == ',' && fscanf(file, "%u", &first) == 1) {
        last = first;
        mark = fgetc(file);
        if (mark == '-') {
            if (fscanf(file, "%u", &last) != 1)
                break;
            mark = fgetc(file);
        }
        for (unsigned int cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET(cpu, set);
    }
    if (file)
        fclose(file);
    if (!CPU_COUNT(set)) {
        for (long cpu = 0; cpu < sysconf(_SC_NPROCESSORS_CONF) && cpu < CPU_SETSIZE; cpu++)
            CPU_SET(cpu, set);
    }
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int size,
                                                 unsigned long *mask, nvmlAffinityScope_t scope)
{
    const unsigned int bits = 8 * sizeof(unsigned long);
    cpu_set_t set;

    ENTER_DEVICE(device);
    if (!mask || !size || scope > NVML_AFFINITY_SCOPE_SOCKET)
        return NVML_ERROR_INVALID_ARGUMENT;
    near_processors(device, &set);
    memset(mask, 0, size * sizeof(*mask));
    for (unsigned int cpu = 0; cpu < CPU_SETSIZE && cpu / bits < size; cpu++) {
        if (CPU_ISSET(cpu, &set))
            mask[cpu / bits] |= 1UL << cpu % bits;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *mask)
{
    ENTER_DEVICE(device);
    return nvmlDeviceGetCpuAffinityWithinScope(device, size, mask, NVML_AFFINITY_SCOPE_NODE);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size,
                                         unsigned long *mask, nvmlAffinityScope_t scope)
{
    ENTER_DEVICE(device);
    if (!mask || !size || scope > NVML_AFFINITY_SCOPE_SOCKET)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(mask, 0, size * sizeof(*mask));
    mask[0] = 1UL << device->numa_node % (8 * sizeof(*mask));
    return NVML_SUCCESS;
}

/* Clients query as many links as any board has: a link that this board lacks is NOT_SUPPORTED, not
 * an invalid argument.
 */
static nvmlReturn_t check_link(nvmlDevice_t device, unsigned int link)
{
    if (link >= NVML_NVLINK_MAX_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    return link < device->nvlinks ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* First lines of a call on one link. */
#define ENTER_LINK(device, link, value)              \
    ENTER_DEVICE(device);                            \
    REQUIRE(value);                                  \
    nvmlReturn_t checked = check_link(device, link); \
    if (checked != NVML_SUCCESS)                     \
    return checked

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                      nvmlEnableState_t *active)
{
    ENTER_LINK(device, link, active);
    *active = topology_active_links(device) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link,
                                        unsigned int *version)
{
    ENTER_LINK(device, link, version);
    *version = topology_nvlink_version(device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                           nvmlNvLinkCapability_t capability, unsigned int *value)
{
    ENTER_LINK(device, link, value);
    if ((unsigned int) capability >= NVML_NVLINK_CAP_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *value = capability == NVML_NVLINK_CAP_P2P_SUPPORTED ||
             capability == NVML_NVLINK_CAP_P2P_ATOMICS || capability == NVML_NVLINK_CAP_VALID;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link,
                                             nvmlNvLinkErrorCounter_t counter,
                                             unsigned long long *value)
{
    ENTER_LINK(device, link, value);
    if ((unsigned int) counter >= NVML_NVLINK_ERROR_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *value = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t *type)
{
    ENTER_LINK(device, link, type);
    if (!topology_active_links(device))
        return NVML_ERROR_NOT_SUPPORTED;
    *type = NVML_NVLINK_DEVICE_TYPE_SWITCH;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                                 nvmlPciInfo_t *pci)
{
    ENTER_LINK(device, link, pci);
    if (!topology_active_links(device))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(pci, 0, sizeof(*pci));
    pci->bus = SWITCH_BUS;
    snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", 0, SWITCH_BUS, 0);
    snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0", 0, SWITCH_BUS, 0);
    return NVML_SUCCESS;
}
