/* SPDX-License-Identifier: Apache-2.0 */
/* placement.c -- placement of a pool's blocks in chunks; see placement.h. */
#include "cuda/placement.h"

#include <stdlib.h>

enum state { FREE, USED, LEAVING };

/* A piece of a chunk. Any stream can use a free one once *freed* is past. */
struct piece {
    struct piece *next;
    uint64_t offset;
    uint64_t bytes;
    enum state state;
    uint64_t stream; /* in which it was freed; 0: available to any */
    struct moment freed;
};

struct chunk {
    struct chunk *next;
    struct pool *pool;
    CUdeviceptr base;
    uint64_t bytes;
    struct piece *pieces;
};

/* Taken before the locks of pools and of memory. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct chunk *chunks;

bool placement_has(const struct pool *pool)
{
    return process.machine->config.pools_are_placed && pool->home == POOL_ON_DEVICE;
}

static bool is_at_hand(const struct piece *piece)
{
    return !piece->stream || queue_moment_is_past(&piece->freed);
}

static bool is_for(const struct piece *piece, const struct stream *stream, bool may_wait)
{
    return piece->state == FREE && (may_wait || piece->stream == stream->id || is_at_hand(piece) ||
                                    stream_waits_for(stream, piece->stream, piece->freed.ticket));
}

/* The first of adjoining pieces that are large enough together, or NULL. */
static struct piece *find_run(const struct chunk *chunk, const struct stream *stream,
                              uint64_t bytes, bool may_wait)
{
    struct piece *first = NULL;
    uint64_t found = 0;

    for (struct piece *piece = chunk->pieces; piece; piece = piece->next) {
        if (!is_for(piece, stream, may_wait)) {
            first = NULL;
            found = 0;
            continue;
        }
        if (!first)
            first = piece;
        found += piece->bytes;
        if (found >= bytes)
            return first;
    }
    return NULL;
}

static bool split(struct piece *piece, uint64_t bytes)
{
    struct piece *rest = malloc(sizeof(*rest));

    if (!rest)
        return false;
    *rest = *piece;
    rest->offset += bytes;
    rest->bytes -= bytes;
    piece->bytes = bytes;
    piece->next = rest;
    return true;
}

static CUresult wait_for(struct stream *stream, const struct piece *piece)
{
    if (piece->stream == stream->id || is_at_hand(piece) ||
        stream_waits_for(stream, piece->stream, piece->freed.ticket))
        return CUDA_SUCCESS;
    return gate_wait(stream, &piece->freed);
}

/* Merge the run that begins with *piece* into one used piece. */
static CUresult use_run(struct piece *piece, struct stream *stream, uint64_t bytes)
{
    CUresult result = wait_for(stream, piece);

    while (result == CUDA_SUCCESS && piece->bytes < bytes) {
        struct piece *next = piece->next;

        result = wait_for(stream, next);
        if (piece->bytes + next->bytes > bytes && !split(next, bytes - piece->bytes))
            return CUDA_ERROR_OUT_OF_MEMORY;
        piece->bytes += next->bytes;
        piece->next = next->next;
        free(next);
    }
    if (result != CUDA_SUCCESS)
        return result;
    if (piece->bytes > bytes && !split(piece, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    piece->state = USED;
    piece->stream = 0;
    return CUDA_SUCCESS;
}

static void count(struct pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&pool_lock);
    pool->reserve.used += bytes;
    if (pool->reserve.used_high < pool->reserve.used)
        pool->reserve.used_high = pool->reserve.used;
    pthread_mutex_unlock(&pool_lock);
}

/* Allocate a chunk of at least so many bytes; NULL if the device is full. */
static struct chunk *grow(struct pool *pool, uint64_t bytes)
{
    struct chunk *chunk = calloc(1, sizeof(*chunk));
    struct piece *piece = calloc(1, sizeof(*piece));
    uint64_t taken = 0;

    pthread_mutex_lock(&pool_lock);
    if (chunk && piece)
        taken = reserve_take(&pool->reserve, bytes);
    pthread_mutex_unlock(&pool_lock);
    if (taken && memory_allocate_on(pool->reserve.device, MEMORY_POOL, taken, &chunk->base) !=
                     CUDA_SUCCESS) {
        pthread_mutex_lock(&pool_lock);
        reserve_give(&pool->reserve, taken);
        pthread_mutex_unlock(&pool_lock);
        taken = 0;
    }
    if (!taken) {
        free(chunk);
        free(piece);
        return NULL;
    }
    piece->bytes = taken;
    chunk->pool = pool;
    chunk->bytes = taken;
    chunk->pieces = piece;
    chunk->next = chunks;
    chunks = chunk;
    return chunk;
}

CUresult placement_take(struct pool *pool, struct stream *stream, uint64_t bytes, bool may_wait,
                        CUdeviceptr *address)
{
    struct chunk *chunk;
    struct piece *piece = NULL;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    pthread_mutex_lock(&lock);
    for (chunk = chunks; chunk && !piece; chunk = piece ? chunk : chunk->next)
        if (chunk->pool == pool)
            piece = find_run(chunk, stream, bytes, may_wait);
    if (!piece && !may_wait) {
        chunk = grow(pool, bytes);
        piece = chunk ? chunk->pieces : NULL;
    }
    if (piece)
        result = use_run(piece, stream, bytes);
    if (result == CUDA_SUCCESS) {
        *address = chunk->base + piece->offset;
        count(pool, bytes);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* The used piece at *address*, and its chunk. Lock held. */
static struct piece *find_used(CUdeviceptr address, struct chunk **found)
{
    for (struct chunk *chunk = chunks; chunk; chunk = chunk->next)
        for (struct piece *piece = chunk->pieces; piece; piece = piece->next)
            if (chunk->base + piece->offset == address && piece->state == USED) {
                *found = chunk;
                return piece;
            }
    return NULL;
}

bool placement_find(uint64_t address, struct memory_info *info)
{
    bool found = false;

    pthread_mutex_lock(&lock);
    for (struct chunk *chunk = chunks; chunk; chunk = chunk->next)
        for (struct piece *piece = chunk->pieces; piece; piece = piece->next)
            if (piece->state == USED && address - (chunk->base + piece->offset) < piece->bytes) {
                info->base = chunk->base + piece->offset;
                info->size = piece->bytes;
                info->pool = chunk->pool;
                found = true;
            }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool is_unused(const struct chunk *chunk)
{
    const struct piece *piece = chunk->pieces;

    while (piece && piece->state == FREE && is_at_hand(piece))
        piece = piece->next;
    return !piece;
}

static void drop(struct chunk **link)
{
    struct chunk *chunk = *link;

    *link = chunk->next;
    memory_free(chunk->base, MEMORY_POOL);
    for (struct piece *piece = chunk->pieces; piece;) {
        struct piece *next = piece->next;

        free(piece);
        piece = next;
    }
    free(chunk);
}

/* Lock held. */
static void shrink(struct pool *pool, uint64_t keep)
{
    for (struct chunk **link = &chunks; *link;) {
        struct chunk *chunk = *link;
        bool goes = chunk->pool == pool && is_unused(chunk);

        pthread_mutex_lock(&pool_lock);
        goes = goes && pool->reserve.reserved - chunk->bytes >= keep;
        if (goes)
            reserve_give(&pool->reserve, chunk->bytes);
        pthread_mutex_unlock(&pool_lock);
        if (goes)
            drop(link);
        else
            link = &chunk->next;
    }
    pthread_mutex_lock(&pool_lock);
    if (pool->magic && pool->is_destroyed && !pool->reserve.reserved)
        pool_note_unused(pool, 0);
    pthread_mutex_unlock(&pool_lock);
}

void placement_shrink(struct pool *pool, uint64_t keep)
{
    pthread_mutex_lock(&lock);
    shrink(pool, keep);
    pthread_mutex_unlock(&lock);
}

CUresult placement_free(struct stream *stream, CUdeviceptr address)
{
    struct work_order mark = {.engine = ENGINE_NONE};
    struct chunk *chunk;
    struct piece *piece;
    struct moment freed = {0};
    struct pool *pool;

    pthread_mutex_lock(&lock);
    piece = find_used(address, &chunk);
    if (piece)
        piece->state = LEAVING;
    pthread_mutex_unlock(&lock);
    if (!piece)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream)
        queue_submit(stream, &mark, &freed);
    pthread_mutex_lock(&lock);
    pool = chunk->pool;
    piece->state = FREE;
    piece->stream = stream ? stream->id : 0;
    piece->freed = freed;
    pthread_mutex_lock(&pool_lock);
    pool->reserve.used -= piece->bytes;
    pthread_mutex_unlock(&pool_lock);
    if (!stream)
        shrink(pool, pool->threshold);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
