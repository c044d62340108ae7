/* SPDX-License-Identifier: Apache-2.0 */
/* limit.c -- settings of the current context: limits, flags, preferences, peers. They are stored
 * and returned; only the device memory that a limit takes has an effect. The defaults are part of
 * the context's bytes.
 */
#include "attribute.h"
#include "context.h"
#include "memory.h"

/* Enter with the calling thread's context; fail if there is none. */
#define ENTER_CURRENT(context)                 \
    ENTER();                                   \
    do {                                       \
        *(context) = context_choose(NULL);     \
        if (!*(context))                       \
            return CUDA_ERROR_INVALID_CONTEXT; \
    } while (0)

/* Limits that newer clients know and our header does not are stored, too. */
static bool is_limit(CUlimit limit)
{
    return (int) limit >= 0 && (int) limit <= 10;
}

/* There is one stack for each thread that can be resident, and one heap and one buffer. */
static uint64_t copies_of(const struct device_config *config, CUlimit limit)
{
    if (limit == CU_LIMIT_STACK_SIZE)
        return (uint64_t) config->sm_count *
               (uint64_t) attribute_value(config,
                                          CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    return limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE;
}

/* Bytes that a limit takes beyond its default. */
static uint64_t beyond_default(const struct CUctx_st *context, CUlimit limit, size_t value)
{
    const struct device_config *config = process_device_config(context->work.ordinal);
    uint64_t copies = copies_of(config, limit);
    uint64_t bytes;

    if (!copies || value <= context_limits[limit])
        return 0;
    if (__builtin_mul_overflow(value - context_limits[limit], copies, &bytes))
        return UINT64_MAX;
    return memory_round(bytes);
}

static CUresult set_limit(struct CUctx_st *context, CUlimit limit, size_t value)
{
    uint64_t before = beyond_default(context, limit, context->limits[limit]);
    uint64_t after = beyond_default(context, limit, value);

    if (after > before &&
        !machine_charge(process.machine, context->work.device, process.slot, after - before))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (after < before)
        machine_discharge(process.machine, context->work.device, process.slot, before - after);
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

void context_reset_limits(struct CUctx_st *context)
{
    for (int limit = 0; limit < CONTEXT_LIMITS; limit++)
        set_limit(context, (CUlimit) limit, context_limits[limit]);
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct CUctx_st *context;
    CUresult result;

    ENTER_CURRENT(&context);
    if (!is_limit(limit))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    context_lock();
    result = set_limit(context, limit, value);
    context_unlock();
    return result;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    struct CUctx_st *context;

    ENTER_CURRENT(&context);
    REQUIRE(value);
    if (!is_limit(limit))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    struct CUctx_st *context;

    ENTER_CURRENT(&context);
    REQUIRE(flags);
    *flags = context->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
    struct CUctx_st *context;

    ENTER_CURRENT(&context);
    if (flags & ~(unsigned int) CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
    struct CUctx_st *context;

    ENTER();
    REQUIRE(id);
    context = context_choose(handle);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *id = context->work.id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
    struct CUctx_st *context;

    ENTER();
    REQUIRE(version);
    context = context_choose(handle);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *version = context->api_version;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *cache)
{
    struct CUctx_st *context;

    ENTER_CURRENT(&context);
    REQUIRE(cache);
    *cache = context->cache;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache cache)
{
    struct CUctx_st *context;

    ENTER_CURRENT(&context);
    if ((int) cache < 0 || cache > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    context->cache = cache;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *shared)
{
    struct CUctx_st *context;

    ENTER_CURRENT(&context);
    REQUIRE(shared);
    *shared = context->shared;
    return CUDA_SUCCESS;
}

/* Banks are four bytes wide on every simulated generation, whatever the program requests. */
CUresult cuCtxSetSharedMemConfig(CUsharedconfig shared)
{
    struct CUctx_st *context;

    ENTER_CURRENT(&context);
    if ((int) shared < 0 || shared > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
    struct CUctx_st *context;

    ENTER_CURRENT(&context);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *affinity, CUexecAffinityType type)
{
    struct CUctx_st *context;

    ENTER_CURRENT(&context);
    REQUIRE(affinity);
    if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    affinity->type = type;
    affinity->param.smCount.val = process_device_config(context->work.ordinal)->sm_count;
    return CUDA_SUCCESS;
}

/* Peer access must be enabled explicitly; enabling it twice is an error. */
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    struct CUctx_st *context;
    struct work_context *other;

    ENTER_CURRENT(&context);
    other = context_of(peer);
    if (!other)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (other->ordinal == context->work.ordinal)
        return CUDA_ERROR_INVALID_DEVICE;
    if (context->peers & 1u << other->ordinal)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= 1u << other->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    struct CUctx_st *context;
    struct work_context *other;

    ENTER_CURRENT(&context);
    other = context_of(peer);
    if (!other)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!(context->peers & 1u << other->ordinal))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~(1u << other->ordinal);
    return CUDA_SUCCESS;
}
