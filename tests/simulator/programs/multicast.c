/* SPDX-License-Identifier: Apache-2.0 */
/* multicast.c -- a multicast object keeps bound memory until it is unbound or the object is gone.
 */
#include "check.h"

#define PAGE (2 * MIB)

static CUmemGenericAllocationHandle page(int device)
{
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemGenericAllocationHandle handle;

    CHECK(cuMemCreate(&handle, PAGE, &props, 0));
    return handle;
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address;

    CHECK(cuMemAddressReserve(&address, PAGE, 0, 0, 0));
    CHECK(cuMemMap(address, PAGE, 0, handle, 0));
    CHECK(cuMemSetAccess(address, PAGE, &access, 1));
    return address;
}

int main(void)
{
    CUmulticastObjectProp prop = {.numDevices = 2, .size = 4 * PAGE};
    CUmemGenericAllocationHandle object, first, second, other;
    size_t before, granularity;
    CUdeviceptr address, object_address;

    open_device(0);
    before = free_bytes();
    CHECK(cuMulticastGetGranularity(&granularity, &prop, CU_MULTICAST_GRANULARITY_MINIMUM));
    EXPECT(granularity == PAGE);
    CHECK(cuMulticastCreate(&object, &prop));
    EXPECT(free_bytes() == before);
    CHECK(cuMulticastAddDevice(object, 0));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice(object, 0));
    first = page(0);
    second = page(0);
    other = page(1);
    /* The arguments swapped; then before all devices were added. */
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(first, 0, object, 0, PAGE, 0));
    EXPECT_RESULT(CUDA_ERROR_ILLEGAL_STATE, cuMulticastBindMem(object, 0, first, 0, PAGE, 0));
    CHECK(cuMulticastAddDevice(object, 1));
    CHECK(cuMulticastBindMem(object, 0, first, 0, PAGE, 0));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(object, 0, second, 0, PAGE, 0));
    CHECK(cuMulticastBindMem(object, 0, other, 0, PAGE, 0)); /* the same place on another device */
    address = map(second);
    CHECK(cuMulticastBindAddr(object, PAGE, address, PAGE, 0));
    /* The bindings alone keep the memory: two pages of device 0. */
    CHECK(cuMemUnmap(address, PAGE));
    CHECK(cuMemRelease(first));
    CHECK(cuMemRelease(second));
    CHECK(cuMemRelease(other));
    EXPECT(before - free_bytes() == 2 * PAGE);
    CHECK(cuMulticastUnbind(object, 0, 0, PAGE));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMulticastUnbind(object, 0, 0, PAGE));
    EXPECT(before - free_bytes() == PAGE);
    /* A mapping keeps the object after its handle was released. */
    object_address = map(object);
    CHECK(cuMemRelease(object));
    EXPECT(before - free_bytes() == PAGE);
    CHECK(cuMemUnmap(object_address, PAGE));
    EXPECT(before == free_bytes());
    puts("ok");
    return 0;
}
