/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c -- stream-ordered allocation, pools and their attributes, virtual memory management. */
#include "check.h"

#define CHUNK (32 * MIB)

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
    uint64_t value = UINT64_MAX;

    CHECK(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

static uint64_t reserved(CUmemoryPool pool)
{
    return attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

static uint64_t used(CUmemoryPool pool)
{
    return attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
}

static void pools_reserve_chunks(void)
{
    size_t before = free_bytes();
    CUmemoryPool pool;
    CUstream stream;
    CUdeviceptr a, b;
    uint64_t keep = UINT64_MAX, zero = 0;
    int reuse = -1;

    CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse));
    EXPECT(reuse == 1 && reserved(pool) == 0 && used(pool) == 0);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAllocAsync(&a, 1000, stream));
    EXPECT(reserved(pool) == CHUNK && used(pool) == 1024);
    EXPECT(before - free_bytes() == CHUNK);
    CHECK(cuMemAllocAsync(&b, 40 * MIB, stream));
    EXPECT(reserved(pool) == 2 * CHUNK);
    CHECK(cuMemsetD8Async(b, 0x5a, 40 * MIB, stream));
    CHECK(cuMemFreeAsync(b, stream));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(b, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(reserved(pool) == CHUNK);
    CHECK(cuMemFree(a)); /* a pool's block, freed the plain way */
    CHECK(cuStreamSynchronize(stream));
    EXPECT(reserved(pool) == 0 && free_bytes() == before);
    EXPECT(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 2 * CHUNK);
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
    EXPECT(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 0);

    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    CHECK(cuMemAllocAsync(&a, 100 * MIB, stream));
    CHECK(cuMemFreeAsync(a, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(reserved(pool) == 4 * CHUNK && used(pool) == 0);
    CHECK(cuMemPoolTrimTo(pool, CHUNK));
    EXPECT(reserved(pool) == CHUNK);
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &zero));
    CHECK(cuCtxSynchronize());
    EXPECT(free_bytes() == before);
    EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&a, before + 1, stream));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(&a, 0, stream));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(4711, stream));
    CHECK(cuStreamDestroy(stream));
}

static void own_pools(void)
{
    CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    };
    size_t before = free_bytes();
    CUmemoryPool pool, found;
    uint32_t value = 0;
    CUdeviceptr a;

    CHECK(cuMemPoolCreate(&pool, &properties));
    CHECK(cuDeviceSetMemPool(0, pool));
    CHECK(cuDeviceGetMemPool(&found, 0));
    EXPECT(found == pool);
    CHECK(cuMemAllocAsync(&a, 4, NULL));
    EXPECT(used(pool) == 512);
    CHECK(cuMemsetD32Async(a, 99, 1, NULL));
    CHECK(cuMemPoolDestroy(pool)); /* freed with its last block */
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(found));
    CHECK(cuMemcpyDtoH(&value, a, 4));
    EXPECT(value == 99 && before - free_bytes() == CHUNK);
    CHECK(cuMemFreeAsync(a, NULL));
    CHECK(cuCtxSynchronize());
    EXPECT(free_bytes() == before);
    CHECK(cuDeviceGetMemPool(&found, 0));
    EXPECT(found != pool);
    properties.location.id = 7;
    EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE, cuMemPoolCreate(&pool, &properties));
}

static void virtual_memory(void)
{
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    };
    CUmemAccessDesc access = {.location = properties.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle first, second, again;
    size_t before = free_bytes();
    size_t granularity;
    CUdeviceptr base;
    unsigned char *out, *back;

    CHECK(
        cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT(granularity == 2 * MIB);
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&first, MIB, &properties, 0));
    CHECK(cuMemCreate(&first, 2 * MIB, &properties, 0));
    CHECK(cuMemCreate(&second, 4 * MIB, &properties, 0));
    EXPECT(before - free_bytes() == 6 * MIB);
    CHECK(cuMemAddressReserve(&base, GIB, 0, 0, 0));
    CHECK(cuMemMap(base, 2 * MIB, 0, first, 0));
    CHECK(cuMemMap(base + 2 * MIB, 4 * MIB, 0, second, 0));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemMap(base + 4 * MIB, 2 * MIB, 0, first, 0));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(base, 1, 1)); /* no access yet */
    CHECK(cuMemSetAccess(base, 6 * MIB, &access, 1));

    out = malloc(6 * MIB);
    back = calloc(1, 6 * MIB);
    for (size_t i = 0; i < 6 * MIB; i++)
        out[i] = (unsigned char) (i * 31 >> 3);
    CHECK(cuMemcpyHtoD(base, out, 6 * MIB)); /* over the seam */
    CHECK(cuMemcpyDtoH(back, base, 6 * MIB));
    EXPECT(!memcmp(out, back, 6 * MIB));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(base + 1, out, 6 * MIB));

    CHECK(cuMemRetainAllocationHandle(&again, (void *) (base + 3 * MIB)));
    EXPECT(again == second);
    CHECK(cuMemRelease(again));
    CHECK(cuMemRelease(first));
    CHECK(cuMemRelease(second));
    EXPECT(before - free_bytes() == 6 * MIB); /* the mappings keep them */
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base, GIB));
    CHECK(cuMemUnmap(base, 6 * MIB));
    EXPECT(free_bytes() == before);
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(base, 2 * MIB));
    CHECK(cuMemAddressFree(base, GIB));
    free(out);
    free(back);
}

/* Allocate 10 MiB from a pool there, visible to the host; returns the decrease of free bytes. */
static size_t taken_by_pool(CUmemAllocationType type, CUmemLocationType where)
{
    CUmemPoolProps props = {.allocType = type, .location = {.type = where}};
    size_t before = free_bytes(), taken;
    CUmemoryPool pool, chosen;
    CUdeviceptr a;

    CHECK(cuMemPoolCreate(&pool, &props));
    CHECK(cuMemSetMemPool(&props.location, type, pool));
    CHECK(cuMemGetMemPool(&chosen, &props.location, type));
    EXPECT(chosen == pool);
    CHECK(cuMemAllocFromPoolAsync(&a, 10 * MIB, pool, NULL));
    *(volatile int *) (uintptr_t) a = 5;
    CHECK(cuMemsetD32(a + 4, 6, 1));
    CHECK(cuCtxSynchronize());
    EXPECT(*(volatile int *) (uintptr_t) a == 5 && *(volatile int *) (uintptr_t) (a + 4) == 6);
    taken = before - free_bytes();
    CHECK(cuMemFree(a));
    CHECK(cuMemPoolDestroy(pool));
    CHECK(cuMemGetMemPool(&chosen, &props.location, type));
    EXPECT(chosen != pool);
    EXPECT(before == free_bytes());
    return taken;
}

static void pools_elsewhere(void)
{
    EXPECT(!taken_by_pool(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST));
    EXPECT(!taken_by_pool(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_HOST_NUMA));
    EXPECT(!taken_by_pool(CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_NONE));
    EXPECT(taken_by_pool(CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE) == 32 * MIB);
}

int main(void)
{
    open_device(0);
    pools_elsewhere();
    pools_reserve_chunks();
    own_pools();
    virtual_memory();
    puts("ok");
    return 0;
}
