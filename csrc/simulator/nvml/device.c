/* SPDX-License-Identifier: Apache-2.0 */
/* device.c -- properties of a device, from machine.conf: identity, PCI, architecture. */
#include "api.h"
#include "source.h"

#include <stdio.h>
#include <string.h>

/* NVIDIA's vendor id, which clients look for, with a device id that no real board has. */
#define PCI_DEVICE_ID 0xffff10deU

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    ENTER_ANY(device);
    return nvml_give_text(name, length, device->name);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    ENTER_ANY(device);
    return nvml_give_text(uuid, length, device->uuid);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    ENTER_DEVICE(device);
    if (!device->serial[0])
        return NVML_ERROR_NOT_SUPPORTED;
    return nvml_give_text(serial, length, device->serial);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    ENTER_DEVICE(device);
    return nvml_give_text(version, length, nvml_driver_release());
}

nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *number, unsigned int length)
{
    ENTER_DEVICE(device);
    return nvml_give_text(number, length, "simulated");
}

static nvmlDeviceArchitecture_t architecture(nvmlDevice_t device)
{
    switch (device->capability_major) {
    case 7:
        return device->capability_minor < 5 ? NVML_DEVICE_ARCH_VOLTA : NVML_DEVICE_ARCH_TURING;
    case 8:
        return device->capability_minor < 9 ? NVML_DEVICE_ARCH_AMPERE : NVML_DEVICE_ARCH_ADA;
    case 9:
        return NVML_DEVICE_ARCH_HOPPER;
    case 10:
    case 12:
        return NVML_DEVICE_ARCH_BLACKWELL;
    default:
        return NVML_DEVICE_ARCH_UNKNOWN;
    }
}

/* CUDA cores of one multiprocessor of this architecture. */
static unsigned int cores_per_sm(nvmlDevice_t device)
{
    bool few = device->capability_major < 8 ||
               (device->capability_major == 8 && device->capability_minor == 0);
    return few ? 64 : 128;
}

NUMBER_OF_ANY(nvmlDeviceGetIndex, unsigned int, device->is_mig ? device->mig_index : device->index)
NUMBER_OF_ANY(nvmlDeviceGetMinorNumber, unsigned int, source_minor(device->parent))
NUMBER(nvmlDeviceGetModuleId, unsigned int, device->index)
NUMBER(nvmlDeviceGetBoardId, unsigned int, device->pci_bus << 8)
NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
NUMBER(nvmlDeviceGetBrand, nvmlBrandType_t, NVML_BRAND_NVIDIA)
NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture(device))
NUMBER(nvmlDeviceGetNumGpuCores, unsigned int, device->sm_count *cores_per_sm(device))
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, device->memory_bus_bits)
NUMBER(nvmlDeviceGetBusType, nvmlBusType_t, NVML_BUS_TYPE_PCIE)
NUMBER(nvmlDeviceGetIrqNum, unsigned int, 64 + device->index)
NUMBER(nvmlDeviceGetPowerSource, nvmlPowerSource_t, NVML_POWER_SOURCE_AC)
NUMBER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)
NUMBER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, NVML_FEATURE_DISABLED)
NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
NUMBER_OF_ANY(nvmlDeviceGetComputeMode, nvmlComputeMode_t,
              (nvmlComputeMode_t) source_compute_mode(device->index))
NUMBER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t,
       NVML_GPU_VIRTUALIZATION_MODE_NONE)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, device->pcie_generation)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, device->pcie_generation)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, device->pcie_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, 16)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int, 0)
/* The first is one of NVML_PCIE_LINK_MAX_SPEED_*, which count generations; the second is in
 * megatransfers per second, 8000 for the third generation and doubling with each.
 */
NUMBER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int, device->pcie_generation)
NUMBER(nvmlDeviceGetPcieSpeed, unsigned int, 1000U << device->pcie_generation)

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER_ANY(device);
    REQUIRE(major && minor);
    *major = (int) device->capability_major;
    *minor = (int) device->capability_minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int *same)
{
    ENTER_DEVICE(device1);
    ENTER_DEVICE(device2);
    REQUIRE(same);
    *same = device1 == device2;
    return NVML_SUCCESS;
}

static void describe_pci(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof(*pci));
    pci->domain = device->pci_domain;
    pci->bus = device->pci_bus;
    pci->device = device->pci_device;
    pci->pciDeviceId = PCI_DEVICE_ID;
    pci->pciSubSystemId = PCI_DEVICE_ID;
    snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", pci->domain, pci->bus,
             pci->device);
    snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0", pci->domain & 0xffff,
             pci->bus & 0xff, pci->device & 0xff);
}

/* The versions share a beginning: v1 ends before the subsystem, v2 before the long address. */
static nvmlReturn_t give_pci(nvmlDevice_t device, nvmlPciInfo_t *pci, size_t size)
{
    nvmlPciInfo_t whole;

    REQUIRE(pci);
    describe_pci(device, &whole);
    memcpy(pci, &whole, size);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_ANY(device);
    return give_pci(device, pci, sizeof(*pci));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_ANY(device);
    return give_pci(device, pci, offsetof(nvmlPciInfo_t, busId));
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_ANY(device);
    return give_pci(device, pci, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    nvmlPciInfo_t whole;

    ENTER_ANY(device);
    REQUIRE(pci);
    REQUIRE_VERSION(pci, nvmlPciInfoExt_v1);
    describe_pci(device, &whole);
    pci->domain = whole.domain;
    pci->bus = whole.bus;
    pci->device = whole.device;
    pci->pciDeviceId = whole.pciDeviceId;
    pci->pciSubSystemId = whole.pciSubSystemId;
    pci->baseClass = 3; /* display controller, */
    pci->subClass = 2;  /* 3D: no display */
    memcpy(pci->busId, whole.busId, sizeof(pci->busId));
    return NVML_SUCCESS;
}
