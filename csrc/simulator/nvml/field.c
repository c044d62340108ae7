/* SPDX-License-Identifier: Apache-2.0 */
/* field.c -- nvmlDeviceGetFieldValues. A field that is not here is NOT_SUPPORTED.
 *
 * The meaning of a field's scope depends on its family: for power 0 is the GPU, 1 the module and
 * 2 the memory, of which only the GPU is known here; for an NVLink it is the link.
 */
#include "load.h"
#include "source.h"
#include "topology.h"

#include <time.h>

static void give_unsigned(nvmlFieldValue_t *field, unsigned int value)
{
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = value;
    field->nvmlReturn = NVML_SUCCESS;
}

static void give_long(nvmlFieldValue_t *field, unsigned long long value)
{
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    field->value.ullVal = value;
    field->nvmlReturn = NVML_SUCCESS;
}

/* Megabytes per second of one link. */
static unsigned int link_speed(nvmlDevice_t device)
{
    if (device->capability_major >= 10)
        return 53125;
    return device->capability_major == 9 ? 26562 : 25000;
}

static void power_field(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    if (field->scopeId != 0)
        return;
    switch (field->fieldId) {
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
        give_unsigned(field, load_power_mw(device));
        break;
    case NVML_FI_DEV_POWER_MIN_LIMIT:
        give_unsigned(field, device->power_limit_mw / 2);
        break;
    default: /* the other limits */
        give_unsigned(field, device->power_limit_mw);
    }
}

static void link_field(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    unsigned int active = topology_active_links(device);

    if (!device->nvlinks)
        return;
    switch (field->fieldId) {
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
        give_unsigned(field, device->nvlinks);
        break;
    case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:
        give_unsigned(field, active);
        break;
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
        give_unsigned(field, active ? link_speed(device) : 0);
        break;
    case NVML_FI_DEV_NVLINK_GET_SPEED:
        if (field->scopeId < device->nvlinks)
            give_unsigned(field, active ? link_speed(device) : 0);
        break;
    case NVML_FI_DEV_NVLINK_GET_STATE:
        if (field->scopeId < device->nvlinks)
            give_unsigned(field, active != 0);
        break;
    case NVML_FI_DEV_NVLINK_GET_VERSION:
        if (field->scopeId < device->nvlinks)
            give_unsigned(field, topology_nvlink_version(device));
        break;
    default: /* error counters */
        give_long(field, 0);
    }
}

static void answer(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    unsigned long long energy;

    field->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    field->value.ullVal = 0; /* nvidia-smi reads it in spite of an error */
    switch (field->fieldId) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING:
        give_unsigned(field, 1);
        break;
    case NVML_FI_DEV_RETIRED_SBE:
    case NVML_FI_DEV_RETIRED_DBE:
    case NVML_FI_DEV_RETIRED_PENDING:
    case NVML_FI_DEV_RETIRED_PENDING_SBE:
    case NVML_FI_DEV_RETIRED_PENDING_DBE:
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
    case NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER:
    case NVML_FI_DEV_REMAPPED_COR:
    case NVML_FI_DEV_REMAPPED_UNC:
    case NVML_FI_DEV_REMAPPED_PENDING:
    case NVML_FI_DEV_REMAPPED_FAILURE:
        give_unsigned(field, 0);
        break;
    case NVML_FI_DEV_MEMORY_TEMP:
        give_unsigned(field, load_temperature(device) + 4);
        break;
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
    case NVML_FI_DEV_ENERGY:
        if (nvmlDeviceGetTotalEnergyConsumption(device, &energy) == NVML_SUCCESS)
            give_long(field, energy);
        break;
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
    case NVML_FI_DEV_POWER_MIN_LIMIT:
    case NVML_FI_DEV_POWER_MAX_LIMIT:
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT:
        power_field(device, field);
        break;
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
    case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
    case NVML_FI_DEV_NVLINK_GET_SPEED:
    case NVML_FI_DEV_NVLINK_GET_STATE:
    case NVML_FI_DEV_NVLINK_GET_VERSION:
    case NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL:
    case NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL:
    case NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL:
    case NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL:
        link_field(device, field);
        break;
    default:
        if (field->fieldId >= NVML_FI_DEV_ECC_SBE_VOL_TOTAL &&
            field->fieldId <= NVML_FI_DEV_ECC_DBE_AGG_CBU)
            give_long(field, 0);
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    struct timespec now;

    ENTER_DEVICE(device);
    if (count <= 0 || !values)
        return NVML_ERROR_INVALID_ARGUMENT;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = now.tv_sec * 1000000 + now.tv_nsec / 1000;
        values[i].latencyUsec = 0;
        answer(device, &values[i]);
    }
    return NVML_SUCCESS;
}
