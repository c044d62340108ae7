/* SPDX-License-Identifier: Apache-2.0 */
/* device.c -- enumeration and identity of devices. */
#include "process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attribute.h"

#define ENTER_DEVICE(config, ordinal)               \
    ENTER();                                        \
    do {                                            \
        *(config) = process_device_config(ordinal); \
        if (!*(config))                             \
            return CUDA_ERROR_INVALID_DEVICE;       \
    } while (0)

struct pci_address {
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int function;
};

/* "0000:01:00.0"; domain and function may be left out. False if it is neither form. */
static bool parse_pci(const char *text, struct pci_address *address)
{
    int end = 0;

    *address = (struct pci_address) {0};
    if (text[strspn(text, "0123456789abcdefABCDEF:.")])
        return false;
    if (sscanf(text, "%x:%x:%x.%x%n", &address->domain, &address->bus, &address->device,
               &address->function, &end) == 4 &&
        !text[end])
        return true;
    address->function = 0;
    if (sscanf(text, "%x:%x:%x%n", &address->domain, &address->bus, &address->device, &end) == 3 &&
        !text[end])
        return true;
    address->domain = 0;
    return sscanf(text, "%x:%x.%x%n", &address->bus, &address->device, &address->function, &end) ==
               3 &&
           !text[end];
}

CUresult cuDeviceGetCount(int *count)
{
    ENTER();
    REQUIRE(count);
    *count = process.device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    const struct device_config *config;

    ENTER();
    REQUIRE(device);
    config = process_device_config(ordinal);
    if (!config)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    const struct device_config *config;

    ENTER_DEVICE(&config, device);
    REQUIRE(name && length > 0);
    snprintf(name, (size_t) length, "%s", config->name);
    return CUDA_SUCCESS;
}

/* "GPU-2f0c5b1e-..." as 16 bytes. */
static void parse_uuid(const char *text, CUuuid *uuid)
{
    unsigned int digits = 0;

    memset(uuid, 0, sizeof(*uuid));
    if (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0)
        text += 4;
    for (; *text && digits < 2 * sizeof(uuid->bytes); text++) {
        char digit[2] = {*text, '\0'};

        if (*text == '-')
            continue;
        uuid->bytes[digits / 2] =
            (char) ((unsigned char) uuid->bytes[digits / 2] << 4 | strtoul(digit, NULL, 16));
        digits++;
    }
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    const struct device_config *config;

    ENTER_DEVICE(&config, device);
    REQUIRE(uuid);
    parse_uuid(config->uuid, uuid);
    return CUDA_SUCCESS;
}

/* The first version knows no compute instances, and returns their device's. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    const struct device_config *config;

    ENTER_DEVICE(&config, device);
    REQUIRE(uuid);
    parse_uuid(process.machine->config.devices[config->parent].uuid, uuid);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    const struct device_config *config;
    struct pci_address address;

    ENTER_DEVICE(&config, device);
    REQUIRE(text && length > 0);
    parse_pci(config->pci, &address);
    snprintf(text, (size_t) length, "%04X:%02X:%02X.%X", address.domain, address.bus,
             address.device, address.function);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    struct pci_address wanted;

    ENTER();
    REQUIRE(device && text && parse_pci(text, &wanted));
    for (int ordinal = 0; ordinal < process.device_count; ordinal++) {
        struct pci_address found;

        parse_pci(process_device_config(ordinal)->pci, &found);
        if (found.domain == wanted.domain && found.bus == wanted.bus &&
            found.device == wanted.device) {
            *device = ordinal;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    const struct device_config *config;
    struct pci_address pci;

    ENTER_DEVICE(&config, device);
    REQUIRE(value && (int) attribute > 0 && (int) attribute <= ATTRIBUTE_LAST);
    parse_pci(config->pci, &pci);
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
        *value = (int) pci.bus;
    else if (attribute == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)
        *value = (int) pci.device;
    else if (attribute == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)
        *value = (int) pci.domain;
    else if (attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        *value = (int) process_units((uint32_t) process_device(device));
    else if (attribute == CU_DEVICE_ATTRIBUTE_MPS_ENABLED)
        *value = process.mps.connection >= 0;
    else if (attribute == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)
        *value = process.machine->config.law.dma_buf;
    else
        *value = attribute_value(config, (int) attribute);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice device)
{
    const struct device_config *config;

    ENTER_DEVICE(&config, device);
    REQUIRE(properties);
    *properties = (CUdevprop) {
        .maxThreadsPerBlock = attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        .maxThreadsDim = {attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
                          attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
                          attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)},
        .maxGridSize = {attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
                        attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
                        attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)},
        .sharedMemPerBlock =
            attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        .totalConstantMemory = attribute_value(config, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
        .SIMDWidth = attribute_value(config, CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        .memPitch = attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_PITCH),
        .regsPerBlock = attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
        .clockRate = attribute_value(config, CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        .textureAlign = attribute_value(config, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
    };
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    const struct device_config *config;

    ENTER_DEVICE(&config, device);
    REQUIRE(major && minor);
    *major = (int) config->capability_major;
    *minor = (int) config->capability_minor;
    return CUDA_SUCCESS;
}

/* Only Windows has LUIDs. */
CUresult cuDeviceGetLuid(char *luid, unsigned int *node_mask, CUdevice device)
{
    const struct device_config *config;

    ENTER_DEVICE(&config, device);
    REQUIRE(luid && node_mask);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format,
                                            unsigned int channels, CUdevice device)
{
    const struct device_config *config;

    ENTER_DEVICE(&config, device);
    REQUIRE(width && (int) format > 0 && channels >= 1 && channels <= 4);
    *width = (size_t) attribute_value(config, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH);
    return CUDA_SUCCESS;
}

/* The SM affinity of contexts, a feature of MPS, is not simulated. */
CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice device)
{
    const struct device_config *config;

    ENTER_DEVICE(&config, device);
    REQUIRE(supported && type == CU_EXEC_AFFINITY_TYPE_SM_COUNT);
    *supported = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    const struct device_config *config;

    ENTER_DEVICE(&config, device);
    REQUIRE(can);
    if (!process_device_config(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice device,
                                 CUdevice peer)
{
    const struct device_config *config;

    ENTER_DEVICE(&config, device);
    REQUIRE(value);
    if (!process_device_config(peer) || peer == device)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
             attribute == CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
}
