/* SPDX-License-Identifier: Apache-2.0 */
/* physical.c -- virtual memory management: memory by handles, mapped at one or several addresses,
 * for one or several devices. None of it needs a context. */
#include "families.h"

static CUmemAllocationProp on(CUdevice device)
{
    return (CUmemAllocationProp) {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = place_on(device),
    };
}

static bool take_physical(struct hand *hand, struct item *item)
{
    CUmemAllocationProp props = on(item->device);

    item->size = hand_pages(hand);
    return GOT(cuMemCreate(&item->handle, item->size, &props, 0));
}

static void give_physical(struct hand *hand, struct item *item)
{
    MUST(cuMemRelease(item->handle));
}

/* A handle may be released as soon as it is mapped, and retained again by the address. */
static bool take_mapped(struct hand *hand, struct item *item)
{
    CUmemAccessDesc access = {place_on(item->device), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle again;

    if (!take_physical(hand, item))
        return false;
    MUST(cuMemAddressReserve(&item->address, 2 * item->size, 0, 0, 0));
    MUST(cuMemMap(item->address, item->size, 0, item->handle, 0));
    MUST(cuMemMap(item->address + item->size, item->size, 0, item->handle, 0));
    MUST(cuMemRelease(item->handle));
    item->second = hand_chance(hand, 2);
    if (item->second) {
        MUST(cuMemRetainAllocationHandle(&again, (void *) (uintptr_t) item->address));
        item->handle = again;
    }
    MUST(cuMemSetAccess(item->address, 2 * item->size, &access, 1));
    if (hand->context)
        hand_mark(hand, item);
    return true;
}

static void give_mapped(struct hand *hand, struct item *item)
{
    MUST(cuMemUnmap(item->address, item->size));
    if (item->second && hand_chance(hand, 2)) {
        MUST(cuMemRelease(item->handle));
        item->second = 0;
    }
    MUST(cuMemUnmap(item->address + item->size, item->size));
    if (item->second)
        MUST(cuMemRelease(item->handle));
    MUST(cuMemAddressFree(item->address, 2 * item->size));
}

static bool take_multicast(struct hand *hand, struct item *item)
{
    CUmulticastObjectProp props = {.numDevices = DEVICES};

    if (!take_physical(hand, item))
        return false;
    props.size = item->size;
    if (!GOT(cuMulticastCreate(&item->second, &props))) {
        MUST(cuMemRelease(item->handle));
        return false;
    }
    for (CUdevice device = 0; device < DEVICES; device++)
        MUST(cuMulticastAddDevice(item->second, device));
    MUST(cuMulticastBindMem(item->second, 0, item->handle, 0, item->size, 0));
    MUST(cuMemRelease(item->handle));
    return true;
}

static void give_multicast(struct hand *hand, struct item *item)
{
    if (hand_chance(hand, 2))
        MUST(cuMulticastUnbind(item->second, item->device, 0, item->size));
    MUST(cuMemRelease(item->second));
}

const struct family family_physical = {
    .name = "physical", .take = take_physical, .give = give_physical};
const struct family family_mapped = {.name = "mapped", .take = take_mapped, .give = give_mapped};
const struct family family_multicast = {
    .name = "multicast", .take = take_multicast, .give = give_multicast};
