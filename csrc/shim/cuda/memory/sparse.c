/* SPDX-License-Identifier: Apache-2.0 */
/* sparse.c -- hooks that map memory into sparse and deferred-mapping arrays.
 *
 * A tile is a part of an array with memory behind it, which it holds until the same part is
 * unmapped or remapped, once the stream has got there, or until the array is destroyed. Streams are
 * not ordered among each other, so only the stream that mapped a tile can end it; and parts that
 * merely overlap are not the same. In doubt, memory is held until the array is destroyed.
 */
#include "shim/cuda/memory/sparse.h"
#include "shim/cuda/context/context.h"
#include "shim/cuda/memory/deferred_free.h"
#include "shim/cuda/memory/physical.h"
#include "shim/cuda/work/stream.h"
#include "core/mutex.h"
#include "core/spin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A part of an array, and the stream on which it was mapped; compared by its bytes. */
struct part {
    uint64_t array;
    uint64_t where[9];
    uint64_t stream[3]; /* a default stream is another one in each context, or in each thread */
};

struct tile {
    struct tile *next;
    struct part part;
    struct physical *memory; /* held */
};

static struct tile *tiles;
static int lock; /* of the tiles */

/* One thread at a time calls the driver, which only queues the work: so the order of the tiles is
 * that of the work on a stream. */
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;

static struct part part_of(const CUarrayMapInfo *info, CUcontext context,
                           const struct stream *stream)
{
    int own = stream->per_thread ? !stream->handle : stream->handle == CU_STREAM_PER_THREAD;
    struct part part = {
        .array = (uintptr_t) info->resource.array,
        .stream = {(uintptr_t) stream->handle,
                   stream_is_object(stream->handle) ? 0 : (uintptr_t) context,
                   own ? (uint64_t) pthread_self() : 0},
    };

    part.where[0] = (uint64_t) info->subresourceType;
    if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
        part.where[1] = info->subresource.miptail.layer;
        part.where[2] = info->subresource.miptail.offset;
        part.where[3] = info->subresource.miptail.size;
    } else {
        part.where[1] = info->subresource.sparseLevel.level;
        part.where[2] = info->subresource.sparseLevel.layer;
        part.where[3] = info->subresource.sparseLevel.offsetX;
        part.where[4] = info->subresource.sparseLevel.offsetY;
        part.where[5] = info->subresource.sparseLevel.offsetZ;
        part.where[6] = info->subresource.sparseLevel.extentWidth;
        part.where[7] = info->subresource.sparseLevel.extentHeight;
        part.where[8] = info->subresource.sparseLevel.extentDepth;
    }
    return part;
}

static void add_tile(struct tile *tile)
{
    spin_lock(&lock, LOCK_SPARSE);
    tile->next = tiles;
    tiles = tile;
    spin_unlock(&lock, LOCK_SPARSE);
}

/* Take out the tile of exactly that part, or the next one of an array; NULL if there is none. */
static struct tile *take_tile(uint64_t array, const struct part *part)
{
    struct tile *found = NULL;

    spin_lock(&lock, LOCK_SPARSE);
    for (struct tile **link = &tiles; *link && !found; link = &(*link)->next)
        if ((*link)->part.array == array &&
            (!part || memcmp(&(*link)->part, part, sizeof(*part)) == 0)) {
            found = *link;
            *link = found->next;
            break;
        }
    spin_unlock(&lock, LOCK_SPARSE);
    return found;
}

void sparse_forget(uint64_t array)
{
    struct tile *tile;

    while (__atomic_load_n(&tiles, __ATOMIC_ACQUIRE) && (tile = take_tile(array, NULL))) {
        physical_drop(tile->memory);
        free(tile);
    }
}

void sparse_after_fork(void)
{
    pthread_mutex_init(&order, NULL);
    lock = 0;
    tiles = NULL;
}

/* The driver releases a tile's memory once the stream has got there. */
static void end_tile(struct tile *tile, const struct stream *stream)
{
    deferred_free_add(&(struct allocation) {.owner = tile->memory, .kind = ALLOCATION_MAPPING},
                      stream->handle, STREAM_CALL(stream, cuEventRecord));
    free(tile);
}

/* Perform one operation; its memory is held before the driver call. */
static CUresult operate(CUarrayMapInfo *info, CUcontext context, const struct stream *stream)
{
    struct part part = part_of(info, context, stream);
    struct tile *tile = NULL;
    struct tile *older;
    CUresult result;

    if (info->memOperationType == CU_MEM_OPERATION_TYPE_MAP) {
        tile = malloc(sizeof(*tile));
        if (!tile)
            return CUDA_ERROR_OUT_OF_MEMORY;
        *tile = (struct tile) {.part = part, .memory = physical_hold(info->memHandle.memHandle)};
        info->memHandle.memHandle = physical_handle(tile->memory, info->memHandle.memHandle);
    }
    result = STREAM_CALL(stream, cuMemMapArrayAsync)(info, 1, stream->handle);
    older = result == CUDA_SUCCESS ? take_tile(part.array, &part) : NULL;
    if (older)
        end_tile(older, stream);
    if (tile && tile->memory && result == CUDA_SUCCESS) {
        add_tile(tile);
    } else if (tile) {
        if (tile->memory)
            physical_drop(tile->memory);
        free(tile);
    }
    return result;
}

/* The program's threads may write to the list meanwhile: so each operation is copied, examined and
 * passed to the driver by itself. */
static CUresult map_arrays(const CUarrayMapInfo *list, unsigned int count,
                           const struct stream *stream)
{
    CUcontext context = NULL;
    CUresult result = CUDA_SUCCESS;

    mutex_lock(&order, LOCK_SPARSE_ORDER);
    driver.cuCtxGetCurrent(&context);
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        CUarrayMapInfo info = list[i];

        result = operate(&info, context, stream);
    }
    mutex_unlock(&order, LOCK_SPARSE_ORDER);
    return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!list || !count)
        return driver.cuMemMapArrayAsync(list, count, stream);
    return map_arrays(list, count, &(struct stream) {stream, 0});
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!list || !count)
        return driver.cuMemMapArrayAsync_ptsz(list, count, stream);
    return map_arrays(list, count, &(struct stream) {stream, 1});
}
