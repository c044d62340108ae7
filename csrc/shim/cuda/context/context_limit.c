/* SPDX-License-Identifier: Apache-2.0 */
/* context_limit.c -- hook of cuCtxSetLimit; some of a context's limits reserve device memory.
 *
 * The context's reserve covers the defaults. What goes beyond is charged before the driver call,
 * adjusted to the limit that the driver then reports, and refunded with the context, or when the
 * limit is lowered.
 */
#include "shim/cuda/context/context_limit.h"
#include "shim/cuda/memory/charge.h"
#include "shim/driver.h"
#include "core/mutex.h"

#include <pthread.h>

/* The most that a level of nested synchronisation, and a pending launch on the device, take. */
#define DEPTH_BYTES  (UINT64_C(150) << 20)
#define LAUNCH_BYTES UINT64_C(1024)

/* One limit is set at a time: its value must not change between the query and the charge. No other
 * hook takes the lock, but it is recursive, as the driver may call tools that call us. */
static pthread_mutex_t limit_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void context_limit_after_fork(void)
{
    limit_lock = (pthread_mutex_t) PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

/* The stack limit holds for every thread that the device can run at once. */
static uint64_t resident_threads(void)
{
    CUdevice ordinal;
    int processors;
    int threads;

    if (driver.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS ||
        driver.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                    ordinal) != CUDA_SUCCESS ||
        driver.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                                    ordinal) != CUDA_SUCCESS)
        return UINT64_MAX; /* then nothing beyond the default fits */
    return (uint64_t) processors * (uint64_t) threads;
}

/* Bytes of device memory for each unit of a limit. */
static uint64_t unit_of(CUlimit limit)
{
    if (limit == CU_LIMIT_STACK_SIZE)
        return resident_threads();
    if (limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE)
        return 1;
    if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH)
        return DEPTH_BYTES;
    return LAUNCH_BYTES;
}

/* The bytes that a limit takes beyond its default. */
static uint64_t beyond(size_t value, size_t standard, uint64_t unit)
{
    uint64_t bytes;

    if (value <= standard)
        return 0;
    return __builtin_mul_overflow(value - standard, unit, &bytes) ? UINT64_MAX : charge_size(bytes);
}

/* The first value seen is the default, since every change comes through here. */
static size_t standard_of(struct context *context, CUlimit limit, size_t value)
{
    if (!(context->limits_known & 1u << limit)) {
        context->limit_standards[limit] = value;
        context->limits_known |= 1u << limit;
    }
    return context->limit_standards[limit];
}

static uint64_t larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static CUresult set(struct context *context, uint32_t life, CUlimit limit, size_t value)
{
    uint64_t unit = unit_of(limit);
    uint64_t covered;
    uint64_t takes;
    uint64_t kept;
    uint64_t had;
    size_t standard;
    size_t before;
    size_t after;
    CUresult result = driver.cuCtxGetLimit(&before, limit);

    if (result != CUDA_SUCCESS)
        return result;
    standard = standard_of(context, limit, before);
    had = beyond(before, standard, unit);
    covered = larger(beyond(value, standard, unit), had);
    if (covered == UINT64_MAX || charge_device(context->device, covered - had) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = driver.cuCtxSetLimit(limit, value);
    after = result == CUDA_SUCCESS ? value : before;
    driver.cuCtxGetLimit(&after, limit);
    takes = beyond(after, standard, unit);
    /* The driver may set a higher limit than requested. */
    if (takes > covered && charge_device(context->device, takes - covered) != CUDA_SUCCESS) {
        driver.cuCtxSetLimit(limit, before);
        result = CUDA_ERROR_OUT_OF_MEMORY;
        takes = had;
    }
    /* Refund what was charged just now and is not taken; earlier charges belong to the context. */
    kept = larger(takes, had);
    if (covered > kept)
        ledger_refund(&shim.ledger, context->device, covered - kept);
    context_change_reserve(context, life, (int64_t) (takes - had));
    return result;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct charge charge;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if ((unsigned) limit >= CONTEXT_LIMITS)
        return driver.cuCtxSetLimit(limit, value);
    result = charge_current(&charge, 0);
    if (result != CUDA_SUCCESS)
        return result;
    if (!charge_settle_context(&charge)) {
        charge_refund(&charge);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mutex_lock(&limit_lock, LOCK_CONTEXT_LIMIT);
    result = set(charge.context, charge.life, limit, value);
    mutex_unlock(&limit_lock, LOCK_CONTEXT_LIMIT);
    return result;
}
