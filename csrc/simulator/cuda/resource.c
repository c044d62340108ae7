/* SPDX-License-Identifier: Apache-2.0 */
/* resource.c -- SM resources of a device: description, splitting, descriptors.
 *
 * A CUdevResource is the program's memory, and programs copy it. Its content is in the bytes
 * reserved for the driver there, with a seal.
 */
#include "cuda/resource.h"

#include <stdlib.h>
#include <string.h>

enum { SEAL = 0x72657375, PAIR = 2 };

/* In CUdevResource._internal_padding. */
struct inner {
    uint32_t seal;
    uint32_t is_part; /* of a split: not to be split again */
    uint64_t split;   /* which one */
    struct processors processors;
};

_Static_assert(sizeof(struct inner) <= sizeof(((CUdevResource *) NULL)->_internal_padding),
               "what a resource stands for is inside it");

struct CUdevResourceDesc_st {
    struct CUdevResourceDesc_st *next;
    struct processors processors;
};

static _Atomic(struct CUdevResourceDesc_st *) descriptors; /* they live as long as the process */

/* --- resources of a device --------------------------------------------------------------- */

static uint32_t major_of(CUdevice ordinal)
{
    return (uint32_t) process_device_config(ordinal)->capability_major;
}

static uint32_t default_alignment(CUdevice ordinal)
{
    return major_of(ordinal) >= 9 ? 8 : PAIR;
}

static uint32_t least_part(CUdevice ordinal)
{
    return major_of(ordinal) >= 9 ? 8 : major_of(ordinal) == 8 ? 4 : PAIR;
}

struct processors resource_whole(CUdevice ordinal)
{
    return (struct processors) {
        .ordinal = ordinal,
        .count = process_device_config(ordinal)->sm_count,
        .alignment = default_alignment(ordinal),
    };
}

static void seal(CUdevResource *resource, const struct processors *processors, uint64_t split)
{
    struct inner inner = {
        .seal = SEAL, .is_part = split != 0, .split = split, .processors = *processors};

    memset(resource, 0, sizeof(*resource));
    if (!processors->count)
        return; /* CU_DEV_RESOURCE_TYPE_INVALID */
    resource->type = CU_DEV_RESOURCE_TYPE_SM;
    resource->sm.smCount = processors->count;
    resource->sm.minSmPartitionSize = least_part(processors->ordinal);
    resource->sm.smCoscheduledAlignment = processors->alignment;
    memcpy(resource->_internal_padding, &inner, sizeof(inner));
}

CUresult resource_describe(const struct processors *processors, CUdevResourceType type,
                           CUdevResource *resource)
{
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    seal(resource, processors, 0);
    return CUDA_SUCCESS;
}

static CUresult read_resource(const CUdevResource *resource, struct inner *inner)
{
    if (resource->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    memcpy(inner, resource->_internal_padding, sizeof(*inner));
    return inner->seal == SEAL && process_device(inner->processors.ordinal) >= 0
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    struct processors all;

    ENTER();
    REQUIRE(resource);
    if (process_device(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    all = resource_whole(device);
    return resource_describe(&all, type, resource);
}

/* --- splitting ------------------------------------------------------------------------------- */

static uint64_t next_split(void)
{
    static _Atomic uint64_t last;

    return atomic_fetch_add(&last, 1) + 1;
}

static uint32_t round_up(uint32_t value, uint32_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Take that many from the front of the rest. */
static struct processors cut(struct processors *rest, uint32_t count, uint32_t alignment)
{
    struct processors part = *rest;

    part.count = count;
    part.alignment = alignment;
    rest->first += count;
    rest->count -= count;
    return part;
}

/* Read the resource to split: it must have our seal, and not be part of a split itself. */
static CUresult read_input(const CUdevResource *input, struct processors *whole)
{
    struct inner inner;
    CUresult result = read_resource(input, &inner);

    *whole = inner.processors;
    if (result == CUDA_SUCCESS && inner.is_part)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    return result;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups,
                                     const CUdevResource *input, CUdevResource *remainder,
                                     unsigned int flags, unsigned int minCount)
{
    bool alone = flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;
    uint64_t split = next_split();
    struct processors rest;
    uint32_t alignment, size, groups;
    CUresult refused;

    ENTER();
    REQUIRE(nbGroups && input);
    if (flags & ~(unsigned int) (CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING |
                                 CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE))
        return CUDA_ERROR_INVALID_VALUE;
    refused = read_input(input, &rest);
    if (refused != CUDA_SUCCESS)
        return refused;
    if (minCount > rest.count || (result && !*nbGroups))
        return CUDA_ERROR_INVALID_VALUE;
    alignment = alone ? PAIR : default_alignment(rest.ordinal);
    size = alone ? PAIR : least_part(rest.ordinal);
    size = round_up(minCount > size ? minCount : size, alignment);
    groups = rest.count / size;
    if (!groups)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (result && groups > *nbGroups)
        groups = *nbGroups;
    for (uint32_t i = 0; i < groups; i++) {
        struct processors part = cut(&rest, size, alignment);
        if (result)
            seal(&result[i], &part, split);
    }
    *nbGroups = groups;
    if (remainder)
        seal(remainder, &rest, split);
    return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13010

/* How many of the remaining SMs the group gets; 0: impossible. */
static uint32_t size_of_group(const CU_DEV_SM_RESOURCE_GROUP_PARAMS *group, uint32_t left,
                              uint32_t together)
{
    bool may_differ = group->flags & CU_DEV_SM_RESOURCE_GROUP_BACKFILL;

    if (!group->smCount)
        return left / together * together;
    if (group->smCount > left || group->smCount % PAIR ||
        (group->smCount % together && !may_differ) || group->smCount < together)
        return 0;
    return group->smCount;
}

CUresult cuDevSmResourceSplit(CUdevResource *result, unsigned int nbGroups,
                              const CUdevResource *input, CUdevResource *remainder,
                              unsigned int flags, CU_DEV_SM_RESOURCE_GROUP_PARAMS *groupParams)
{
    uint64_t split = next_split();
    struct processors rest;
    uint32_t most_together;
    CUresult refused;

    ENTER();
    REQUIRE(nbGroups && input && groupParams && !flags);
    refused = read_input(input, &rest);
    if (refused != CUDA_SUCCESS)
        return refused;
    most_together = major_of(rest.ordinal) >= 9 ? 32 : PAIR;
    for (unsigned int i = 0; i < nbGroups; i++) {
        CU_DEV_SM_RESOURCE_GROUP_PARAMS *group = &groupParams[i];
        uint32_t together =
            group->coscheduledSmCount ? group->coscheduledSmCount : default_alignment(rest.ordinal);
        struct processors part;

        if (together % PAIR || together > most_together ||
            group->flags & ~(unsigned int) CU_DEV_SM_RESOURCE_GROUP_BACKFILL)
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        part = cut(&rest, size_of_group(group, rest.count, together), together);
        if (!part.count && (result || group->smCount))
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        group->smCount = part.count;
        if (result)
            seal(&result[i], &part, split);
    }
    if (remainder)
        seal(remainder, &rest, split);
    return CUDA_SUCCESS;
}

#endif

/* --- descriptors ------------------------------------------------------------------------- */

/* Join resources: all of one device and one split, each at most once. */
static CUresult join(const CUdevResource *resources, unsigned int count, struct processors *all)
{
    struct inner first, other;
    CUresult result = read_resource(&resources[0], &first);

    *all = first.processors;
    for (unsigned int i = 1; i < count && result == CUDA_SUCCESS; i++) {
        result = read_resource(&resources[i], &other);
        if (result != CUDA_SUCCESS)
            return result;
        for (unsigned int j = 0; j < i; j++)
            if (!memcmp(resources[i]._internal_padding, resources[j]._internal_padding,
                        sizeof(other)))
                return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        if (!other.is_part || other.split != first.split ||
            other.processors.alignment != first.processors.alignment)
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        all->count += other.processors.count;
    }
    return result;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources,
                                   unsigned int nbResources)
{
    struct CUdevResourceDesc_st *made;
    struct processors all;
    CUresult result;

    ENTER();
    REQUIRE(phDesc && resources && nbResources);
    result = join(resources, nbResources, &all);
    if (result != CUDA_SUCCESS)
        return result;
    made = malloc(sizeof(*made));
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->processors = all;
    made->next = atomic_load(&descriptors);
    while (!atomic_compare_exchange_weak(&descriptors, &made->next, made))
        continue;
    *phDesc = made;
    return CUDA_SUCCESS;
}

bool resource_of(CUdevResourceDesc descriptor, struct processors *processors)
{
    struct CUdevResourceDesc_st *known = atomic_load(&descriptors);

    while (known && known != descriptor)
        known = known->next;
    if (known)
        *processors = known->processors;
    return known != NULL;
}
