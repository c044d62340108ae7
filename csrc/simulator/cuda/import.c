/* SPDX-License-Identifier: Apache-2.0 */
/* import.c -- maps and unmaps memory that another process exported. */
#include "cuda/import.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "heap.h"
#include "queue.h"
#include "share.h"

struct import {
    void *bytes;
    uint64_t length;
    void *holder;
    enum memory_kind what; /* in its own process */
};

CUresult import_find_place(CUdeviceptr address, int share, uint64_t magic, struct place *place)
{
    struct memory_info info;
    CUresult result;

    REQUIRE(memory_find(address, &info));
    result = memory_publish(info.device);
    if (result != CUDA_SUCCESS)
        return result;
    *place = (struct place) {
        .magic = magic,
        .generation = process.generation,
        .slot = process.slot,
        .device = info.device,
        .offset = info.base - memory_heap(info.device)->base,
        .size = info.size,
        .id = share_read(process.machine, share)->id,
        .share = (uint32_t) share,
    };
    return CUDA_SUCCESS;
}

CUresult import_check_place(const struct place *place, uint64_t magic)
{
    if (place->magic != magic || place->slot >= MACHINE_SLOTS || place->share >= MACHINE_SHARES ||
        place->device >= process.machine->config.unit_count || !place->size)
        return CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < process.device_count; i++)
        if (process.devices[i] == (int) place->device)
            return CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_DEVICE;
}

void import_end(struct import *import)
{
    munmap(import->bytes, import->length);
    share_let_go(process.machine, import->holder);
    free(import);
}

static bool exporter_lives(const struct place *place)
{
    const struct machine_slot *slot = &process.machine->state->slots[place->slot];

    return machine_slot_is_live(process.machine, place->slot) &&
           slot->generation == place->generation &&
           atomic_load(&share_read(process.machine, (int) place->share)->state) == SHARE_OWNED;
}

static void *map(const struct place *place, uint64_t *length)
{
    uint64_t start = place->offset / 4096 * 4096;
    char path[PATH_MAX];
    void *bytes;
    int fd;

    machine_memory_path(process.machine, place->slot, place->generation, place->device, path,
                        sizeof(path));
    fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return MAP_FAILED;
    *length = place->offset - start + place->size;
    bytes = mmap(NULL, *length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t) start);
    close(fd);
    if (bytes != MAP_FAILED)
        madvise(bytes, *length, MADV_DONTFORK);
    return bytes;
}

CUresult import_place(struct work_context *work, const struct place *place, CUdeviceptr *address)
{
    struct import *import;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;

    machine_reap(process.machine, true);
    if (!exporter_lives(place)) /* never hold, even briefly, memory that its owner has freed */
        return result;
    import = calloc(1, sizeof(*import));
    if (!import)
        return CUDA_ERROR_OUT_OF_MEMORY;
    import->what = work ? MEMORY_DEVICE : MEMORY_POOL;
    import->holder = share_hold(process.machine, (int) place->share, place->id, true);
    if (!import->holder || !exporter_lives(place)) {
        if (import->holder)
            share_let_go(process.machine, import->holder);
        free(import);
        return result;
    }
    import->bytes = map(place, &import->length);
    result = import->bytes == MAP_FAILED
                 ? CUDA_ERROR_MAP_FAILED
                 : memory_adopt(work, MEMORY_IMPORTED, place->device,
                                (char *) import->bytes + place->offset % 4096, place->size, import,
                                address);
    if (result == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    if (import->bytes != MAP_FAILED)
        munmap(import->bytes, import->length);
    share_let_go(process.machine, import->holder);
    free(import);
    return result;
}

CUresult import_close(CUdeviceptr address, enum memory_kind what)
{
    struct import *import = memory_owner(address, MEMORY_IMPORTED);
    struct memory_info info;

    REQUIRE(import && import->what == what && memory_find(address, &info));
    queue_drain(info.device);
    if (memory_free(address, MEMORY_IMPORTED) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    import_end(import);
    return CUDA_SUCCESS;
}
