/* SPDX-License-Identifier: Apache-2.0 */
/* memoryheap.c -- this process's heaps, one for each device that it uses, and their files. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "heap.h"
#include "memory.h"

static struct heap heaps[CONFIG_DEVICES];
static _Atomic bool heap_is_open[CONFIG_DEVICES];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

struct heap *memory_heap_if_open(uint32_t device)
{
    return atomic_load_explicit(&heap_is_open[device], memory_order_acquire) ? &heaps[device]
                                                                             : NULL;
}

struct heap *memory_heap(uint32_t device)
{
    struct machine_slot *slot;
    char path[PATH_MAX];

    if (memory_heap_if_open(device))
        return &heaps[device];
    pthread_mutex_lock(&opening);
    if (!heap_is_open[device]) {
        int result;
        /* First record that there may be a file, so that a process that reaps this one removes it.
         */
        slot = &process.machine->state->slots[process.slot];
        __atomic_fetch_or(&slot->memory_files, UINT64_C(1) << device, __ATOMIC_SEQ_CST);
        machine_memory_path(process.machine, process.slot, process.generation, device, path,
                            sizeof(path));
        result =
            heap_open(&heaps[device], path, process.machine->config.devices[device].memory_bytes);
        if (result)
            fprintf(stderr, "pyvgpu simulator: %s: no memory for device %u: %s\n", path,
                    (unsigned int) device, strerror(-result));
        else
            atomic_store(&heap_is_open[device], true);
    }
    pthread_mutex_unlock(&opening);
    return heap_is_open[device] ? &heaps[device] : NULL;
}

struct heap *memory_heap_of(uint64_t address)
{
    for (uint32_t device = 0; device < process.machine->config.unit_count; device++)
        if (memory_heap_if_open(device) && heap_has(&heaps[device], address))
            return &heaps[device];
    return NULL;
}

uint32_t memory_heap_device(const struct heap *heap)
{
    return (uint32_t) (heap - heaps);
}

CUresult memory_publish(uint32_t device)
{
    struct heap *heap = memory_heap(device);
    char path[PATH_MAX];
    int result;

    if (!heap)
        return CUDA_ERROR_OPERATING_SYSTEM;
    machine_memory_path(process.machine, process.slot, process.generation, device, path,
                        sizeof(path));
    pthread_mutex_lock(&heap->lock);
    result = heap_name_file(heap, path);
    pthread_mutex_unlock(&heap->lock);
    return result ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
