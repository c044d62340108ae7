/* SPDX-License-Identifier: Apache-2.0 */
/* ipc.c -- device memory of one process in another: a handle says whose file, and where in it.
 *
 * The importer maps the exporter's bytes; they live as long as either mapping, the charge as long
 * as the exporter.
 */
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "heap.h"
#include "memory.h"
#include "queue.h"

#define HANDLE_MAGIC UINT64_C(0x7076677569706d31)

struct handle {
    uint64_t magic;
    uint64_t generation;
    uint32_t slot;
    uint32_t device;
    uint64_t offset; /* of the allocation in the file */
    uint64_t size;
    uint64_t id; /* of the allocation in its process */
    uint64_t unused[2];
};

_Static_assert(sizeof(struct handle) == sizeof(CUipcMemHandle), "it fills the handle");

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    struct memory_info info;
    struct handle handle;
    CUresult result;

    ENTER();
    REQUIRE(pHandle && memory_find(dptr, &info) && info.kind == MEMORY_DEVICE);
    result = memory_publish(info.device);
    if (result != CUDA_SUCCESS)
        return result;
    handle = (struct handle) {
        .magic = HANDLE_MAGIC,
        .generation = process.generation,
        .slot = process.slot,
        .device = info.device,
        .offset = info.base - memory_heap(info.device)->base,
        .size = info.size,
        .id = info.id,
    };
    memcpy(pHandle, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

static bool exporter_lives(const struct handle *handle)
{
    const struct machine_slot *slot = &process.machine->state->slots[handle->slot];

    return machine_slot_is_live(process.machine, handle->slot) &&
           slot->generation == handle->generation;
}

static CUresult import(struct work_context *work, const struct handle *handle, CUdeviceptr *address)
{
    uint64_t start = handle->offset / 4096 * 4096;
    uint64_t inside = handle->offset - start;
    char path[PATH_MAX];
    CUresult result;
    char *bytes;
    int fd;

    machine_memory_path(process.machine, handle->slot, handle->generation, handle->device, path,
                        sizeof(path));
    fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return CUDA_ERROR_MAP_FAILED;
    bytes =
        mmap(NULL, inside + handle->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t) start);
    close(fd);
    if (bytes == MAP_FAILED)
        return CUDA_ERROR_MAP_FAILED;
    madvise(bytes, inside + handle->size, MADV_DONTFORK);
    result = memory_adopt(work, handle->device, bytes + inside, handle->size, bytes, address);
    if (result != CUDA_SUCCESS)
        munmap(bytes, inside + handle->size);
    return result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    struct work_context *work;
    struct handle ours;
    bool visible = false;

    ENTER_CONTEXT(&work);
    memcpy(&ours, &handle, sizeof(ours));
    REQUIRE(pdptr && Flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (ours.magic != HANDLE_MAGIC || ours.slot >= MACHINE_SLOTS ||
        ours.device >= process.machine->config.device_count || !ours.size)
        return CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < process.device_count; i++)
        visible |= process.devices[i] == (int) ours.device;
    if (!visible)
        return CUDA_ERROR_INVALID_DEVICE;
    if (ours.slot == process.slot && ours.generation == process.generation)
        return CUDA_ERROR_INVALID_CONTEXT; /* a process cannot import what is its own */
    machine_reap(process.machine, false);
    if (!exporter_lives(&ours))
        return CUDA_ERROR_INVALID_HANDLE;
    return import(work, &ours, pdptr);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    return cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    struct memory_info info;
    char *bytes;

    ENTER();
    bytes = memory_owner(dptr, MEMORY_IMPORTED);
    REQUIRE(bytes && memory_find(dptr, &info));
    queue_drain(info.device);
    if (memory_free(dptr, MEMORY_IMPORTED) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    munmap(bytes, info.size + (uint64_t) bytes % 4096);
    return CUDA_SUCCESS;
}
