/* SPDX-License-Identifier: Apache-2.0 */
/* find.c -- device handles by index, UUID, serial number and PCI address.
 *
 * NVML shows every device of the machine, whatever CUDA_VISIBLE_DEVICES says, also a lost one:
 * only calls on its handle report the loss.
 */
#include "api.h"
#include "source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER();
    REQUIRE(count);
    *count = nvml_device_count();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    ENTER();
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    ENTER();
    REQUIRE(device);
    if (index >= nvml_device_count())
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = nvml_device(index);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    ENTER();
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t find_uuid(const char *uuid, nvmlDevice_t *device)
{
    unsigned int gpu_instance, compute_instance;
    char parent[64], end;

    nvml_refresh();
    for (unsigned int i = 0; i < SOURCE_DEVICES; i++) {
        if (nvml_device(i)->is_live && !strcasecmp(nvml_device(i)->uuid, uuid)) {
            *device = nvml_device(i);
            return NVML_SUCCESS;
        }
    }
    /* Drivers before 470 named compute instances by their device. */
    if (sscanf(uuid, "MIG-%63[^/]/%u/%u%c", parent, &gpu_instance, &compute_instance, &end) != 3)
        return NVML_ERROR_NOT_FOUND;
    for (unsigned int i = nvml_device_count(); i < SOURCE_DEVICES; i++) {
        nvmlDevice_t found = nvml_device(i);

        if (found->is_live && found->gpu_instance == gpu_instance &&
            found->compute_instance == compute_instance &&
            !strcasecmp(nvml_device(found->parent)->uuid, parent)) {
            *device = found;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER();
    REQUIRE(uuid && device);
    return find_uuid(uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    ENTER();
    REQUIRE(uuid && device);
    REQUIRE_VERSION(uuid, nvmlUUID_v1);
    if (uuid->type == NVML_UUID_TYPE_ASCII) {
        char text[sizeof(uuid->value.str) + 1];

        memcpy(text, uuid->value.str, sizeof(uuid->value.str));
        text[sizeof(uuid->value.str)] = '\0';
        return find_uuid(text, device);
    }
    if (uuid->type == NVML_UUID_TYPE_BINARY) {
        const unsigned char *b = uuid->value.bytes;
        char text[48];

        snprintf(text, sizeof(text),
                 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                 b[14], b[15]);
        if (find_uuid(text, device) == NVML_SUCCESS)
            return NVML_SUCCESS;
        memcpy(text, "MIG-", 4); /* the bytes do not say which */
        return find_uuid(text, device);
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    ENTER();
    REQUIRE(serial && device);
    for (unsigned int i = 0; i < nvml_device_count(); i++) {
        if (nvml_device(i)->serial[0] && !strcmp(nvml_device(i)->serial, serial)) {
            *device = nvml_device(i);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* Parse domain:bus:device.function; domain and function may be left out. */
static bool parse_pci(const char *text, unsigned int *domain, unsigned int *bus, unsigned int *slot)
{
    unsigned long parts[3];
    size_t count = 0;
    char *end;

    for (const char *at = text; count < 3; at = end + 1) {
        if (!strchr("0123456789abcdefABCDEF", *at) || !*at)
            return false;
        parts[count++] = strtoul(at, &end, 16);
        if (*end != ':')
            break;
    }
    if (count < 2 || (*end && strcmp(end, ".0") != 0))
        return false;
    *domain = count == 3 ? (unsigned int) parts[0] : 0;
    *bus = (unsigned int) parts[count - 2];
    *slot = (unsigned int) parts[count - 1];
    return true;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *device)
{
    unsigned int domain, bus, slot;

    ENTER();
    REQUIRE(address && device);
    if (!parse_pci(address, &domain, &bus, &slot))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < nvml_device_count(); i++) {
        nvmlDevice_t found = nvml_device(i);

        if (found->pci_domain == domain && found->pci_bus == bus && found->pci_device == slot) {
            *device = found;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *address, nvmlDevice_t *device)
{
    ENTER();
    return nvmlDeviceGetHandleByPciBusId_v2(address, device);
}
