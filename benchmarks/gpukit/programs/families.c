/* SPDX-License-Identifier: Apache-2.0 */
/* families.c -- allocates as much device memory as possible, by one family of calls.
 *
 *   families FAMILY WAY MOST_BYTES
 *
 * One request of all that is free and one of more; then requests of 1 GiB, halved when one is
 * refused, until 2 MiB are refused. Prints its results as JSON and waits for a line; then frees
 * half, takes it again, frees everything, and prints a second line of JSON. Stops at MOST_BYTES: if
 * the quota is not enforced, it must not fill a device that others use.
 */
#include "cu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PIECES = 4096, STAMP_BYTES = 64 };

#define MIB      ((size_t) 1 << 20)
#define SMALLEST (2 * MIB)
#define LARGEST  (1024 * MIB)
#define STEP     (64 * MIB) /* what the largest request is rounded down to: a multiple of any unit */

struct piece {
    CUdeviceptr address; /* 0: it has none that can be copied to */
    CUmemGenericAllocationHandle physical;
    void *object;
    size_t size;
};

struct family {
    const char *name;
    CUresult (*take)(struct piece *, size_t);
    void (*give)(const struct piece *);
};

static CUstream stream;
static CUmemoryPool own_pool;

static CUresult take_plain(struct piece *piece, size_t size)
{
    return cu.cuMemAlloc_v2(&piece->address, size);
}

static void give_plain(const struct piece *piece)
{
    CHECK(cu.cuMemFree_v2(piece->address));
}

static CUresult take_pitched(struct piece *piece, size_t size)
{
    size_t pitch;

    return cu.cuMemAllocPitch_v2(&piece->address, &pitch, MIB, size / MIB, 4);
}

static CUresult take_managed(struct piece *piece, size_t size)
{
    return cu.cuMemAllocManaged(&piece->address, size, CU_MEM_ATTACH_GLOBAL);
}

static CUresult wait_for_stream(CUresult result)
{
    return result == CUDA_SUCCESS ? cu.cuStreamSynchronize(stream) : result;
}

static CUresult take_pooled(struct piece *piece, size_t size)
{
    return wait_for_stream(cu.cuMemAllocAsync(&piece->address, size, stream));
}

static void give_pooled(const struct piece *piece)
{
    CHECK(cu.cuMemFreeAsync(piece->address, stream));
    CHECK(cu.cuStreamSynchronize(stream));
}

static CUresult take_own_pool(struct piece *piece, size_t size)
{
    if (!own_pool) {
        CUmemPoolProps properties;

        memset(&properties, 0, sizeof(properties));
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        CHECK(cu.cuMemPoolCreate(&own_pool, &properties));
    }
    return wait_for_stream(cu.cuMemAllocFromPoolAsync(&piece->address, size, own_pool, stream));
}

static void unmap(const struct piece *piece)
{
    CHECK(cu.cuMemUnmap(piece->address, piece->size));
    CHECK(cu.cuMemAddressFree(piece->address, piece->size));
}

static CUresult take_physical(struct piece *piece, size_t size)
{
    CUmemAllocationProp properties;
    CUmemAccessDesc access;
    CUresult result;

    memset(&properties, 0, sizeof(properties));
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    result = cu.cuMemCreate(&piece->physical, size, &properties, 0);
    if (result != CUDA_SUCCESS)
        return result;
    memset(&access, 0, sizeof(access));
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(cu.cuMemAddressReserve(&piece->address, size, 0, 0, 0));
    CHECK(cu.cuMemMap(piece->address, size, 0, piece->physical, 0));
    CHECK(cu.cuMemSetAccess(piece->address, size, &access, 1));
    return CUDA_SUCCESS;
}

static void give_physical(const struct piece *piece)
{
    unmap(piece);
    CHECK(cu.cuMemRelease(piece->physical));
}

static CUresult take_array(struct piece *piece, size_t size)
{
    CUDA_ARRAY_DESCRIPTOR shape = {
        .Width = 65536,
        .Height = size / 65536,
        .Format = CU_AD_FORMAT_UNSIGNED_INT8,
        .NumChannels = 1,
    };

    return cu.cuArrayCreate_v2((CUarray *) &piece->object, &shape);
}

static CUresult take_cube(struct piece *piece, size_t size)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 1024,
        .Height = 1024,
        .Depth = size / MIB,
        .Format = CU_AD_FORMAT_UNSIGNED_INT8,
        .NumChannels = 1,
    };

    return cu.cuArray3DCreate_v2((CUarray *) &piece->object, &shape);
}

static void give_array(const struct piece *piece)
{
    CHECK(cu.cuArrayDestroy(piece->object));
}

static CUresult take_mipmapped(struct piece *piece, size_t size)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 32768,
        .Height = size / 32768,
        .Format = CU_AD_FORMAT_UNSIGNED_INT8,
        .NumChannels = 1,
    };

    return cu.cuMipmappedArrayCreate((CUmipmappedArray *) &piece->object, &shape, 1);
}

static void give_mipmapped(const struct piece *piece)
{
    CHECK(cu.cuMipmappedArrayDestroy(piece->object));
}

/* A graph that allocates and does not free. */
static CUresult take_graph(struct piece *piece, size_t size)
{
    CUDA_MEM_ALLOC_NODE_PARAMS wanted;
    CUgraphNode node;
    CUgraphExec ready = NULL;
    CUgraph graph;
    CUresult result;

    memset(&wanted, 0, sizeof(wanted));
    wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.bytesize = size;
    CHECK(cu.cuGraphCreate(&graph, 0));
    result = cu.cuGraphAddMemAllocNode(&node, graph, NULL, 0, &wanted);
    if (result == CUDA_SUCCESS)
        result = cu.cuGraphInstantiateWithFlags(&ready, graph, 0);
    if (result == CUDA_SUCCESS)
        result = cu.cuGraphLaunch(ready, stream);
    result = wait_for_stream(result);
    piece->address = wanted.dptr;
    piece->object = ready;
    CHECK(cu.cuGraphDestroy(graph));
    if (result != CUDA_SUCCESS && ready)
        CHECK(cu.cuGraphExecDestroy(ready));
    return result;
}

static void give_graph(const struct piece *piece)
{
    CHECK(cu.cuMemFree_v2(piece->address));
    CHECK(cu.cuGraphExecDestroy(piece->object));
    CHECK(cu.cuDeviceGraphMemTrim(0));
}

static const struct family families[] = {
    {"plain", take_plain, give_plain},
    {"pitched", take_pitched, give_plain},
    {"managed", take_managed, give_plain},
    {"pooled", take_pooled, give_pooled},
    {"own pool", take_own_pool, give_pooled},
    {"physical", take_physical, give_physical},
    {"array", take_array, give_array},
    {"cube", take_cube, give_array},
    {"mipmapped", take_mipmapped, give_mipmapped},
    {"graph", take_graph, give_graph},
};

static struct piece pieces[MOST_PIECES];
static size_t count;

static size_t free_bytes(void)
{
    size_t available;
    size_t total;

    CHECK(cu.cuMemGetInfo_v2(&available, &total));
    return available;
}

static void stamp_of(size_t index, unsigned char *stamp)
{
    for (size_t i = 0; i < STAMP_BYTES; i++)
        stamp[i] = (unsigned char) (index * 31 + i);
}

/* Write to the first and the last bytes of a piece. */
static void write_stamps(size_t index)
{
    const struct piece *piece = &pieces[index];
    unsigned char stamp[STAMP_BYTES];

    stamp_of(index, stamp);
    CHECK(cu.cuMemcpyHtoD_v2(piece->address, stamp, STAMP_BYTES));
    CHECK(cu.cuMemcpyHtoD_v2(piece->address + piece->size - STAMP_BYTES, stamp, STAMP_BYTES));
}

static int stamps_are_there(void)
{
    for (size_t i = 0; i < count; i++) {
        unsigned char stamp[STAMP_BYTES];
        unsigned char found[2 * STAMP_BYTES];

        if (!pieces[i].address)
            continue;
        stamp_of(i, stamp);
        CHECK(cu.cuMemcpyDtoH_v2(found, pieces[i].address, STAMP_BYTES));
        CHECK(cu.cuMemcpyDtoH_v2(found + STAMP_BYTES,
                                 pieces[i].address + pieces[i].size - STAMP_BYTES, STAMP_BYTES));
        if (memcmp(found, stamp, STAMP_BYTES) != 0 ||
            memcmp(found + STAMP_BYTES, stamp, STAMP_BYTES) != 0)
            return 0;
    }
    return 1;
}

static CUresult take(const struct family *family, size_t size)
{
    struct piece piece = {.size = size};
    CUresult result = family->take(&piece, size);

    if (result != CUDA_SUCCESS)
        return result;
    pieces[count] = piece;
    if (piece.address)
        write_stamps(count);
    count++;
    return result;
}

static void give_last(const struct family *family)
{
    family->give(&pieces[--count]);
}

/* One request of *size* bytes, freed at once. */
static int take_once(const struct family *family, size_t size)
{
    CUresult result = take(family, size);

    if (result == CUDA_SUCCESS)
        give_last(family);
    return (int) result;
}

/* Print why the last request of each size was refused; return the bytes that are held. */
static size_t fill(const struct family *family, size_t most)
{
    size_t held = 0;
    const char *separator = "";

    printf("\"codes\": [");
    for (size_t size = LARGEST; size >= SMALLEST;) {
        CUresult result;

        if (held >= most || count == MOST_PIECES)
            break;
        result = take(family, size);
        if (result == CUDA_SUCCESS) {
            held += size;
            continue;
        }
        printf("%s%d", separator, (int) result);
        separator = ", ";
        size /= 2;
    }
    printf("], ");
    return held;
}

static void take_half_again(const struct family *family)
{
    size_t all = count;
    size_t sizes[MOST_PIECES];
    const char *separator = "";

    for (size_t i = 0; i < all; i++)
        sizes[i] = pieces[i].size;
    while (count > all / 2)
        give_last(family);
    printf("\"again\": [");
    for (size_t i = all / 2; i < all; i++) {
        printf("%s%d", separator, (int) take(family, sizes[i]));
        separator = ", ";
    }
    printf("], ");
}

int main(int argc, char **argv)
{
    const struct family *family = families;
    const struct family *end = families + sizeof(families) / sizeof(families[0]);
    size_t total;
    size_t available;
    size_t largest;
    size_t held;

    while (argc == 4 && family < end && strcmp(family->name, argv[1]) != 0)
        family++;
    if (argc != 4 || family == end) {
        fprintf(stderr, "usage: families FAMILY WAY MOST_BYTES, for example families plain "
                        "linked 5368709120\n");
        return BAD_USAGE;
    }
    cu_begin(argv[2]);
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cu.cuDeviceTotalMem_v2(&total, 0));
    available = free_bytes();
    printf("{\"device\": %zu, ", total);
    CHECK(cu.cuMemGetInfo_v2(&available, &total));
    /* No mipmapped array has more than 1 GiB. */
    largest = family->take == take_mipmapped ? 0 : available / STEP * STEP;
    printf("\"total\": %zu, \"free\": %zu, \"at\": %d, ", total, available,
           largest ? take_once(family, largest) : 0);
    printf("\"past\": %d, ",
           largest ? take_once(family, largest + STEP) : CUDA_ERROR_OUT_OF_MEMORY);
    held = fill(family, strtoull(argv[3], NULL, 10));
    printf("\"held\": %zu, \"same\": %d}\n", held, stamps_are_there());
    wait_for_line();
    printf("{");
    take_half_again(family);
    while (count)
        give_last(family);
    if (own_pool)
        CHECK(cu.cuMemPoolDestroy(own_pool));
    printf("\"left\": %zu}\n", free_bytes());
    return 0;
}
