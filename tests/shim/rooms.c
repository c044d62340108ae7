/* SPDX-License-Identifier: Apache-2.0 */
/* rooms.c -- threads that compete for the same free memory of a pool; reports the pool's peak size.
 *
 * The pool keeps its memory. `rooms large`: each request is for two thirds of the available memory,
 * so one at a time can have it. `rooms small`: linear memory leaves the pool one chunk, and each
 * request is for a part of that. How many of the threads' requests succeed is random; before the
 * threads start, each does. One line: bytes available to the pool, most bytes it ever held.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define THREADS   6
#define ROUNDS    1000
#define CHUNK     (UINT64_C(32) << 20)
#define THRESHOLD 4 /* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */
#define HELD      5 /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */
#define HIGH      6 /* CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH */

extern int cuInit(unsigned int flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuMemGetInfo_v2(size_t *available, size_t *total);
extern int cuDeviceGetMemPool(void **pool, int device);
extern int cuMemPoolSetAttribute(void *pool, int name, void *value);
extern int cuMemPoolGetAttribute(void *pool, int name, void *value);
extern int cuMemAlloc_v2(uint64_t *address, size_t bytes);
extern int cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream);
extern int cuMemFreeAsync(uint64_t address, void *stream);

static void *context;
static size_t wanted[3];

/* Make so many requests; returns how many succeeded. */
static int ask(int requests)
{
    uint64_t address;
    int granted = 0;

    for (int i = 0; i < requests; i++) {
        if (cuMemAllocAsync(&address, wanted[i % 3], NULL) != 0)
            continue;
        granted++;
        cuMemFreeAsync(address, NULL);
    }
    return granted;
}

static void *work(void *unused)
{
    (void) unused;
    cuCtxSetCurrent(context);
    ask(ROUNDS);
    return NULL;
}

static int leave_one_chunk(void *pool, size_t *available)
{
    uint64_t held;
    uint64_t address;
    size_t total;

    if (cuMemAllocAsync(&address, 512, NULL) || cuMemPoolGetAttribute(pool, HELD, &held))
        return 1;
    do
        cuMemGetInfo_v2(available, &total);
    while (*available >= CHUNK && cuMemAlloc_v2(&address, CHUNK / 2) == 0);
    *available = held;
    for (int i = 0; i < 3; i++)
        wanted[i] = CHUNK / (size_t) (3 + i) - 4096;
    return held != CHUNK;
}

int main(int count, char **arguments)
{
    pthread_t threads[THREADS];
    uint64_t most = UINT64_MAX;
    uint64_t high = 0;
    size_t available;
    size_t total;
    void *pool;

    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
        cuDeviceGetMemPool(&pool, 0) || cuMemPoolSetAttribute(pool, THRESHOLD, &most) ||
        cuMemGetInfo_v2(&available, &total))
        return 1;
    for (int i = 0; i < 3; i++)
        wanted[i] = available / 3 * 2 / CHUNK * CHUNK;
    if (count > 1 && strcmp(arguments[1], "small") == 0 && leave_one_chunk(pool, &available))
        return 1;
    if (ask(3) != 3)
        return 2;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    if (cuMemPoolGetAttribute(pool, HIGH, &high))
        return 1;
    printf("%zu %llu\n", available, (unsigned long long) high);
    return 0;
}
