/* SPDX-License-Identifier: Apache-2.0 */
/* library.c -- initialisation, reference count, and entry checks.
 *
 * The machine is mapped at the first initialisation and stays mapped: a shutdown only makes
 * calls return UNINITIALIZED, like NVIDIA's library, so no call needs a lock to be safe
 * against one. After a fork the child continues with the same mapping.
 */
#include "api.h"
#include "fault.h"
#include "mig.h"
#include "source.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static atomic_uint users;
static bool opened;
static struct nvmlDevice_st devices[SOURCE_DEVICES];
static unsigned int device_count;

static void lock_init(void)
{
    pthread_mutex_lock(&init_lock);
}

static void unlock_init(void)
{
    pthread_mutex_unlock(&init_lock);
}

static void before_fork(void)
{
    lock_init();
    mig_before_fork();
    fault_before_fork();
}

static void after_fork(void)
{
    fault_after_fork();
    mig_after_fork();
    unlock_init();
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

static nvmlReturn_t add_user(void)
{
    nvmlReturn_t result = NVML_SUCCESS;

    pthread_once(&fork_once, watch_forks);
    lock_init();
    if (!opened) {
        result = source_open(devices, &device_count);
        opened = result == NVML_SUCCESS;
    }
    if (result == NVML_SUCCESS)
        atomic_fetch_add(&users, 1);
    unlock_init();
    return result;
}

static nvmlReturn_t initialise(const char *name)
{
    nvmlReturn_t result = add_user();

    if (result != NVML_SUCCESS)
        return result;
    result = source_fault(name);
    if (result != NVML_SUCCESS)
        atomic_fetch_sub(&users, 1);
    return result;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    if (flags & ~(unsigned int) (NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH))
        return NVML_ERROR_INVALID_ARGUMENT;
    return initialise(__func__);
}

nvmlReturn_t nvmlInit_v2(void)
{
    return initialise(__func__);
}

nvmlReturn_t nvmlInit(void)
{
    return initialise(__func__);
}

nvmlReturn_t nvmlShutdown(void)
{
    unsigned int now = atomic_load(&users);

    do {
        if (now == 0)
            return NVML_ERROR_UNINITIALIZED;
    } while (!atomic_compare_exchange_weak(&users, &now, now - 1));
    return NVML_SUCCESS;
}

const char *nvml_driver_release(void)
{
    return source_driver_release();
}

int nvml_cuda_version(void)
{
    return source_cuda_version();
}

unsigned int nvml_device_count(void)
{
    return device_count;
}

nvmlDevice_t nvml_device(unsigned int index)
{
    return &devices[index];
}

nvmlReturn_t nvml_enter(const char *name)
{
    if (atomic_load_explicit(&users, memory_order_acquire) == 0)
        return NVML_ERROR_UNINITIALIZED;
    return source_fault(name);
}

nvmlReturn_t nvml_enter_device(const char *name, nvmlDevice_t device)
{
    nvmlReturn_t result = nvml_enter(name);
    uintptr_t offset = (uintptr_t) device - (uintptr_t) devices;

    if (result != NVML_SUCCESS)
        return result;
    if (offset % sizeof(devices[0]) || offset / sizeof(devices[0]) >= SOURCE_DEVICES)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (device->is_mig || !device->is_live)
        return device->is_live ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    return source_lost(device->index) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvml_enter_any(const char *name, nvmlDevice_t device)
{
    uintptr_t offset = (uintptr_t) device - (uintptr_t) devices;

    if (offset % sizeof(devices[0]) || offset / sizeof(devices[0]) >= SOURCE_DEVICES ||
        !device->is_mig)
        return nvml_enter_device(name, device);
    nvmlReturn_t result = nvml_enter(name);
    if (result != NVML_SUCCESS)
        return result;
    nvml_refresh();
    if (!device->is_live)
        return NVML_ERROR_INVALID_ARGUMENT;
    return source_lost(device->parent) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

void nvml_refresh(void)
{
    source_refresh(devices);
}

nvmlReturn_t nvml_give_text(char *buffer, unsigned int length, const char *text)
{
    size_t needed = strlen(text) + 1;

    REQUIRE(buffer);
    if (length < needed)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(buffer, text, needed);
    return NVML_SUCCESS;
}
