/* SPDX-License-Identifier: Apache-2.0 */
/* external.c -- external memory of graphics APIs, imported by file descriptor.
 *
 * There is no such API here. A descriptor that this driver exported refers to that memory; any
 * other file of the given size stands for device memory that its importer holds.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/handle.h"
#include "cuda/physical.h"
#include "share.h"

enum { EXTERNAL_MAGIC = 0x65787465 };

struct external {
    uint32_t magic;
    uint32_t device;
    uint64_t size;
    uint64_t charged;
    char *bytes;
    struct physical *physical; /* NULL: a file's */
};

static struct external *find(CUexternalMemory handle)
{
    struct external *external = (struct external *) handle;

    if (!external || (uintptr_t) handle % sizeof(void *) || external->magic != EXTERNAL_MAGIC)
        return NULL;
    return external;
}

static CUresult import_share(struct external *external, int fd)
{
    CUresult result;
    uint64_t id;
    int share;

    result = handle_import((void *) (intptr_t) fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &share,
                           &id);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(share_read(process.machine, share)->kind == SHARE_PHYSICAL &&
            share_read(process.machine, share)->size >= external->size);
    result =
        physical_import(share, id, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &external->physical);
    if (result == CUDA_SUCCESS)
        external->bytes = external->physical->bytes;
    return result;
}

static CUresult import_file(struct external *external, int fd)
{
    struct stat file;
    void *bytes;

    if (share_gave(process.machine, fd) || fstat(fd, &file)) /* a dma-buf, or none */
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE((uint64_t) file.st_size >= external->size);
    external->charged = memory_round(external->size);
    if (!machine_charge(process.machine, external->device, process.slot, external->charged))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bytes = mmap(NULL, external->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) {
        machine_discharge(process.machine, external->device, process.slot, external->charged);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    madvise(bytes, external->size, MADV_DONTFORK);
    external->bytes = bytes;
    return CUDA_SUCCESS;
}

CUresult cuImportExternalMemory(CUexternalMemory *extMem_out,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *memHandleDesc)
{
    struct external *external;
    struct work_context *work;
    CUresult result;
    int fd;

    ENTER_CONTEXT(&work);
    REQUIRE(extMem_out && memHandleDesc && memHandleDesc->size);
    if (memHandleDesc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    fd = memHandleDesc->handle.fd;
    external = calloc(1, sizeof(*external));
    if (!external)
        return CUDA_ERROR_OUT_OF_MEMORY;
    external->magic = EXTERNAL_MAGIC;
    external->device = work->device;
    external->size = memHandleDesc->size;
    result = share_of_descriptor(process.machine, fd) != SHARE_NONE ? import_share(external, fd)
                                                                    : import_file(external, fd);
    if (result != CUDA_SUCCESS) {
        free(external);
        return result;
    }
    close(fd); /* it is the driver's now */
    *extMem_out = (CUexternalMemory) external;
    return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *devPtr, CUexternalMemory extMem,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *bufferDesc)
{
    const struct external *external;
    struct work_context *work;

    ENTER_CONTEXT(&work);
    external = find(extMem);
    REQUIRE(devPtr && external && bufferDesc && !bufferDesc->flags && bufferDesc->size);
    REQUIRE(bufferDesc->offset <= external->size &&
            bufferDesc->size <= external->size - bufferDesc->offset);
    return memory_adopt(work, MEMORY_EXTERNAL, external->device,
                        external->bytes + bufferDesc->offset, bufferDesc->size, NULL, devPtr);
}

/* This also frees the bytes of buffers that were not freed; using them is the program's error. */
CUresult cuDestroyExternalMemory(CUexternalMemory extMem)
{
    struct external *external;

    ENTER();
    external = find(extMem);
    REQUIRE(external);
    external->magic = 0;
    if (external->physical) {
        physical_release(physical_handle(external->physical));
    } else {
        munmap(external->bytes, external->size);
        machine_discharge(process.machine, external->device, process.slot, external->charged);
    }
    free(external);
    return CUDA_SUCCESS;
}
