/* SPDX-License-Identifier: Apache-2.0 */
/* device.c -- hooks that initialise NVML and look up devices.
 *
 * Handles are the driver's own, so calls that are not hooked work on them. NVML takes no slot: it
 * reads the ledger and charges nothing. It ignores CUDA_VISIBLE_DEVICES.
 */
#include "shim/nvml/device.h"
#include "shim/driver.h"
#include "shim/shim.h"
#include "core/visible.h"
#include "core/mutex.h"

#include <pthread.h>
#include <string.h>

static int users; /* nvmlInit minus nvmlShutdown */
static nvmlDevice_t handles[REGION_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

int nvml_loaded(void)
{
    return shim_loaded() && pthread_once(&load_once, driver_load_nvml) == 0;
}

int nvml_is_open(void)
{
    return __atomic_load_n(&users, __ATOMIC_ACQUIRE) > 0;
}

void nvml_after_fork(void)
{
    pthread_mutex_init(&lock, NULL); /* a thread that does not exist here may have held it */
}

int nvml_device_index(nvmlDevice_t device)
{
    for (unsigned i = 0; device && i < shim.limits.device_count; i++)
        if (__atomic_load_n(&handles[i], __ATOMIC_RELAXED) == device)
            return (int) i;
    return -1;
}

nvmlReturn_t nvml_enter(nvmlDevice_t device, unsigned *index)
{
    int found = nvml_is_open() ? nvml_device_index(device) : -1;
    nvmlReturn_t result;

    if (likely(found >= 0)) {
        *index = (unsigned) found;
        return NVML_SUCCESS;
    }
    if (!nvml_loaded())
        return NVML_ERROR_UNINITIALIZED;
    /* For an invalid handle, return the driver's own error. */
    result = driver.nvmlDeviceGetIndex(device, &(unsigned) {0});
    return result == NVML_SUCCESS ? NVML_ERROR_NO_PERMISSION : result;
}

/* The driver's handle of one of the quota's devices, looked up by UUID and cached once found. */
static nvmlReturn_t find_handle(unsigned index, nvmlDevice_t *device)
{
    nvmlReturn_t result = NVML_SUCCESS;
    char uuid[VISIBLE_UUID_TEXT];

    if (!__atomic_load_n(&handles[index], __ATOMIC_RELAXED)) {
        nvmlDevice_t found;

        visible_device_text(&shim.limits, index, uuid);
        result = driver.nvmlDeviceGetHandleByUUID(uuid, &found);
        if (result == NVML_SUCCESS)
            __atomic_store_n(&handles[index], found, __ATOMIC_RELAXED);
    }
    *device = handles[index];
    return result;
}

static int prepare(void)
{
    return shim_attach() == 0 && nvml_loaded();
}

/* Count a successful nvmlInit; the first one looks up all handles again. */
static nvmlReturn_t started(nvmlReturn_t result)
{
    nvmlDevice_t ignored;

    if (result != NVML_SUCCESS)
        return result;
    mutex_lock(&lock, LOCK_NVML);
    if (users++ == 0) {
        memset(handles, 0, sizeof(handles));
        for (unsigned i = 0; i < shim.limits.device_count; i++)
            find_handle(i, &ignored);
    }
    mutex_unlock(&lock, LOCK_NVML);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void)
{
    return prepare() ? started(driver.nvmlInit()) : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return prepare() ? started(driver.nvmlInit_v2()) : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    return prepare() ? started(driver.nvmlInitWithFlags(flags)) : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result;

    if (!nvml_loaded())
        return NVML_ERROR_UNINITIALIZED;
    result = driver.nvmlShutdown();
    mutex_lock(&lock, LOCK_NVML);
    if (result == NVML_SUCCESS && users > 0)
        users--;
    mutex_unlock(&lock, LOCK_NVML);
    return result;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER();
    if (!count)
        return driver.nvmlDeviceGetCount_v2(count);
    *count = shim.limits.device_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    ENTER();
    if (!device || index >= shim.limits.device_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    return find_handle(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* Return a device that the driver finds by a name only if it is in the quota. */
#define FIND_BY(symbol, name)                                 \
    do {                                                      \
        nvmlDevice_t found = NULL;                            \
        nvmlReturn_t result;                                  \
                                                              \
        ENTER();                                              \
        result = driver.symbol(name, device ? &found : NULL); \
        if (result != NVML_SUCCESS)                           \
            return result;                                    \
        if (nvml_device_index(found) < 0)                     \
            return NVML_ERROR_NOT_FOUND;                      \
        *device = found;                                      \
        return NVML_SUCCESS;                                  \
    } while (0)

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    FIND_BY(nvmlDeviceGetHandleBySerial, serial);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    FIND_BY(nvmlDeviceGetHandleByUUID, uuid);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    FIND_BY(nvmlDeviceGetHandleByUUIDV, uuid);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
    FIND_BY(nvmlDeviceGetHandleByPciBusId, id);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    FIND_BY(nvmlDeviceGetHandleByPciBusId_v2, id);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    unsigned own;

    ENTER_DEVICE(device, own);
    if (!index)
        return driver.nvmlDeviceGetIndex(device, index);
    *index = own;
    return NVML_SUCCESS;
}
