/* SPDX-License-Identifier: Apache-2.0 */
/* share.c -- one side (exporter or importer) of shared memory.
 *
 *   share export WHAT BYTES IN OUT   allocates, and starts the other side: this program, which has
 *                                    IN and OUT as its standard input and output
 *   share import WHAT BYTES FD       opens it, by FD or by the bytes at descriptor 100
 *   share foreign FILE BYTES         imports a file that stands for another API's memory
 *
 * Each does a step for each line it reads, and reports it; the test may kill it at any time. WHAT
 * is linear, physical, fabric, pool or external.
 */
#include "check.h"

#include <fcntl.h>
#include <unistd.h>

static void wait_for_a_line(void)
{
    char byte;

    while (read(0, &byte, 1) == 1)
        if (byte == '\n')
            return;
    exit(0);
}

static void say(const char *what)
{
    printf("%s\n", what);
    fflush(stdout);
}

static CUmemAllocationProp properties(CUmemAllocationHandleType type)
{
    return (CUmemAllocationProp) {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = type,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    };
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle, size_t size)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address;

    CHECK(cuMemAddressReserve(&address, size, 0, 0, 0));
    CHECK(cuMemMap(address, size, 0, handle, 0));
    CHECK(cuMemSetAccess(address, size, &access, 1));
    return address;
}

/* Channels to the other side: a descriptor by inheritance, bytes in a pipe. */
static int other_input, other_output;

static void start(const char *self, const char *what, size_t size, int fd, const void *bytes,
                  size_t count)
{
    char number[16], length[32];
    int to[2];

    EXPECT(!pipe(to));
    EXPECT(write(to[1], bytes, count) == (ssize_t) count);
    close(to[1]);
    if (fork() == 0) {
        snprintf(number, sizeof(number), "%d", fd < 0 ? -1 : dup(fd));
        snprintf(length, sizeof(length), "%zu", size);
        dup2(to[0], 100);
        dup2(other_input, 0);
        dup2(other_output, 1);
        execl(self, self, "import", what, length, number, NULL);
        _exit(1);
    }
    close(to[0]);
}

static int export(const char *self, const char *what, size_t size)
{
    CUmemAllocationHandleType type = strcmp(what, "fabric")
                                         ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                         : CU_MEM_HANDLE_TYPE_FABRIC;
    CUmemAllocationProp props = properties(type);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    int fd = -1;

    if (!strcmp(what, "linear")) {
        CUipcMemHandle bytes;

        CHECK(cuMemAlloc(&address, size));
        CHECK(cuMemsetD32(address, 5, 1));
        CHECK(cuIpcGetMemHandle(&bytes, address));
        start(self, what, size, -1, &bytes, sizeof(bytes));
        wait_for_a_line();
        CHECK(cuMemFree(address));
    } else if (!strcmp(what, "pool")) {
        CUmemPoolProps pool_props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .handleTypes = type,
                                     .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
        CUmemPoolPtrExportData bytes;
        CUmemoryPool pool;

        CHECK(cuMemPoolCreate(&pool, &pool_props));
        CHECK(cuMemAllocFromPoolAsync(&address, size, pool, NULL));
        CHECK(cuMemsetD32(address, 5, 1));
        EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&bytes, address));
        CHECK(cuMemPoolExportToShareableHandle(&fd, pool, type, 0));
        CHECK(cuMemPoolExportPointer(&bytes, address));
        start(self, what, size, fd, &bytes, sizeof(bytes));
        close(fd);
        wait_for_a_line();
        CHECK(cuMemFree(address));
        CHECK(cuMemPoolDestroy(pool));
    } else {
        CUmemFabricHandle bytes;

        CHECK(cuMemCreate(&handle, size, &props, 0));
        address = map(handle, size);
        CHECK(cuMemsetD32(address, 5, 1));
        if (type == CU_MEM_HANDLE_TYPE_FABRIC)
            CHECK(cuMemExportToShareableHandle(&bytes, handle, type, 0));
        else
            CHECK(cuMemExportToShareableHandle(&fd, handle, type, 0));
        start(self, what, size, fd, &bytes, sizeof(bytes));
        if (fd >= 0)
            close(fd);
        wait_for_a_line();
        CHECK(cuMemUnmap(address, size));
        CHECK(cuMemRelease(handle));
    }
    say("freed");
    wait_for_a_line();
    return 0;
}

static int import(const char *what, size_t size, int fd)
{
    char bytes[64] = {0};
    CUmemGenericAllocationHandle handle = 0;
    CUexternalMemory external = NULL;
    CUmemoryPool pool = NULL;
    CUdeviceptr address;
    uint32_t word = 0;

    (void) !read(100, bytes, sizeof(bytes));
    say("there");
    wait_for_a_line();
    if (!strcmp(what, "linear")) {
        CUipcMemHandle ipc;

        memcpy(&ipc, bytes, sizeof(ipc));
        CHECK(cuIpcOpenMemHandle(&address, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    } else if (!strcmp(what, "pool")) {
        CUmemPoolPtrExportData data;

        memcpy(&data, bytes, sizeof(data));
        CHECK(cuMemPoolImportFromShareableHandle(&pool, (void *) (intptr_t) fd,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&address, 4, pool, NULL));
        CHECK(cuMemPoolImportPointer(&address, pool, &data));
    } else if (!strcmp(what, "external")) {
        CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {
            .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle.fd = fd, .size = size};
        CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.size = size};

        CHECK(cuImportExternalMemory(&external, &desc));
        CHECK(cuExternalMemoryGetMappedBuffer(&address, external, &buffer));
        fd = -1;
    } else if (!strcmp(what, "fabric")) {
        CHECK(cuMemImportFromShareableHandle(&handle, bytes, CU_MEM_HANDLE_TYPE_FABRIC));
        address = map(handle, size);
    } else {
        CHECK(cuMemImportFromShareableHandle(&handle, (void *) (intptr_t) fd,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        address = map(handle, size);
    }
    if (fd >= 0)
        close(fd);
    CHECK(cuMemcpyDtoH(&word, address, 4));
    EXPECT(word == 5);
    say("open");
    wait_for_a_line();
    CHECK(cuMemcpyDtoH(&word, address, 4));
    EXPECT(word == 5 || pool); /* a block of a pool must not be freed before its imports are */
    if (!strcmp(what, "linear")) {
        CHECK(cuIpcCloseMemHandle(address));
    } else if (external || pool) {
        CHECK(cuMemFree(address));
        if (external)
            CHECK(cuDestroyExternalMemory(external));
        else
            CHECK(cuMemPoolDestroy(pool));
    } else {
        CHECK(cuMemUnmap(address, size));
        CHECK(cuMemRelease(handle));
    }
    say("closed");
    wait_for_a_line();
    return 0;
}

/* A file stands for another API's memory. */
static int foreign(const char *path, size_t size)
{
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
                                             .size = size};
    CUexternalMemory external;
    size_t before = free_bytes();

    desc.handle.fd = open(path, O_RDWR);
    desc.size = size + 1;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory(&external, &desc));
    desc.size = size;
    CHECK(cuImportExternalMemory(&external, &desc));
    EXPECT(before - free_bytes() == size);
    CHECK(cuDestroyExternalMemory(external));
    EXPECT(before == free_bytes());
    say("ok");
    return 0;
}

int main(int count, char **arguments)
{
    EXPECT(count > 3);
    open_device(0);
    if (!strcmp(arguments[1], "foreign"))
        return foreign(arguments[2], strtoull(arguments[3], NULL, 10));
    if (!strcmp(arguments[1], "export")) {
        EXPECT(count > 5);
        other_input = atoi(arguments[4]);
        other_output = atoi(arguments[5]);
        return export(arguments[0], arguments[2], strtoull(arguments[3], NULL, 10));
    }
    return import(arguments[2], strtoull(arguments[3], NULL, 10), atoi(arguments[4]));
}
