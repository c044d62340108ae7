/* SPDX-License-Identifier: Apache-2.0 */
/* shared.c -- one process exports device memory, another opens it, closes it, opens it again; then
 * the exporter is killed.
 *
 *   shared KIND WAY BYTES
 *
 * KIND is handle (cuIpcGetMemHandle), descriptor (cuMemExportToShareableHandle) or pool
 * (cuMemPoolExportToShareableHandle). Descriptors go through a unix socket. Prints the free memory
 * after each step as JSON.
 */
#include "cu.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STAMP_BYTES = 64, DATA_BYTES = 64, WAIT_SECONDS = 10 };

struct message {
    unsigned char data[DATA_BYTES];
    int descriptor; /* -1: none */
};

struct opened {
    CUdeviceptr address;
    CUmemGenericAllocationHandle physical;
    CUmemoryPool pool;
};

struct kind {
    const char *name;
    void (*export)(struct message *);
    CUresult (*open)(struct opened *, struct message *);
    void (*close)(struct opened *);
};

static size_t bytes;
static CUstream stream;
static const unsigned char stamp[STAMP_BYTES] = "exported memory";

static void write_stamp(CUdeviceptr address)
{
    CHECK(cu.cuMemcpyHtoD_v2(address, stamp, sizeof(stamp)));
}

static void export_handle(struct message *message)
{
    CUipcMemHandle handle;
    CUdeviceptr address;

    CHECK(cu.cuMemAlloc_v2(&address, bytes));
    write_stamp(address);
    CHECK(cu.cuIpcGetMemHandle(&handle, address));
    memcpy(message->data, &handle, sizeof(handle));
}

static CUresult open_handle(struct opened *opened, struct message *message)
{
    CUipcMemHandle handle;

    memcpy(&handle, message->data, sizeof(handle));
    return cu.cuIpcOpenMemHandle_v2(&opened->address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static void close_handle(struct opened *opened)
{
    CHECK(cu.cuIpcCloseMemHandle(opened->address));
}

static void map(struct opened *opened)
{
    CUmemAccessDesc access;

    memset(&access, 0, sizeof(access));
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(cu.cuMemAddressReserve(&opened->address, bytes, 0, 0, 0));
    CHECK(cu.cuMemMap(opened->address, bytes, 0, opened->physical, 0));
    CHECK(cu.cuMemSetAccess(opened->address, bytes, &access, 1));
}

static void export_descriptor(struct message *message)
{
    struct opened own;
    CUmemAllocationProp properties;

    memset(&properties, 0, sizeof(properties));
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CHECK(cu.cuMemCreate(&own.physical, bytes, &properties, 0));
    map(&own);
    write_stamp(own.address);
    CHECK(cu.cuMemExportToShareableHandle(&message->descriptor, own.physical,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static CUresult open_descriptor(struct opened *opened, struct message *message)
{
    CUresult result = cu.cuMemImportFromShareableHandle(&opened->physical,
                                                        (void *) (intptr_t) message->descriptor,
                                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    if (result == CUDA_SUCCESS)
        map(opened);
    return result;
}

static void close_descriptor(struct opened *opened)
{
    CHECK(cu.cuMemUnmap(opened->address, bytes));
    CHECK(cu.cuMemAddressFree(opened->address, bytes));
    CHECK(cu.cuMemRelease(opened->physical));
}

static void export_pool(struct message *message)
{
    CUmemPoolPtrExportData data;
    CUmemPoolProps properties;
    CUmemoryPool pool;
    CUdeviceptr address;

    memset(&properties, 0, sizeof(properties));
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CHECK(cu.cuMemPoolCreate(&pool, &properties));
    CHECK(cu.cuMemAllocFromPoolAsync(&address, bytes, pool, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    write_stamp(address);
    CHECK(cu.cuMemPoolExportToShareableHandle(&message->descriptor, pool,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(cu.cuMemPoolExportPointer(&data, address));
    memcpy(message->data, &data, sizeof(data));
}

static CUresult open_pool(struct opened *opened, struct message *message)
{
    CUmemPoolPtrExportData data;
    CUresult result = cu.cuMemPoolImportFromShareableHandle(
        &opened->pool, (void *) (intptr_t) message->descriptor,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

    if (result != CUDA_SUCCESS)
        return result;
    memcpy(&data, message->data, sizeof(data));
    return cu.cuMemPoolImportPointer(&opened->address, opened->pool, &data);
}

static void close_pool(struct opened *opened)
{
    CHECK(cu.cuMemFreeAsync(opened->address, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(cu.cuMemPoolDestroy(opened->pool));
}

static const struct kind kinds[] = {
    {"handle", export_handle, open_handle, close_handle},
    {"descriptor", export_descriptor, open_descriptor, close_descriptor},
    {"pool", export_pool, open_pool, close_pool},
};

static void send_message(int end, struct message *message)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {message, sizeof(*message)};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

    if (message->descriptor >= 0) {
        struct cmsghdr *entry;

        header.msg_control = control;
        header.msg_controllen = sizeof(control);
        entry = CMSG_FIRSTHDR(&header);
        entry->cmsg_level = SOL_SOCKET;
        entry->cmsg_type = SCM_RIGHTS;
        entry->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(entry), &message->descriptor, sizeof(int));
    }
    if (sendmsg(end, &header, 0) != (ssize_t) sizeof(*message)) {
        perror("sendmsg");
        exit(FAILED);
    }
}

static void receive_message(int end, struct message *message)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {message, sizeof(*message)};
    struct msghdr header = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control,
        .msg_controllen = sizeof(control),
    };
    struct cmsghdr *entry;

    if (recvmsg(end, &header, 0) != (ssize_t) sizeof(*message)) {
        fprintf(stderr, "the exporter ended early\n");
        exit(FAILED);
    }
    entry = CMSG_FIRSTHDR(&header);
    message->descriptor = -1;
    if (entry && entry->cmsg_type == SCM_RIGHTS)
        memcpy(&message->descriptor, CMSG_DATA(entry), sizeof(int));
}

static size_t free_bytes(void)
{
    size_t available;
    size_t total;

    CHECK(cu.cuMemGetInfo_v2(&available, &total));
    return available;
}

static void begin(const char *way)
{
    cu_begin(way);
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void be_exporter(const struct kind *kind, const char *way, int end)
{
    struct message message = {.descriptor = -1};

    begin(way);
    send_message(end, &message); /* its context is there */
    receive_message(end, &message);
    kind->export(&message);
    send_message(end, &message);
    for (;;)
        pause();
}

/* The free bytes once they no longer change, as they do while the driver ends a process. */
static size_t settled_bytes(void)
{
    size_t last;
    size_t seen = free_bytes();

    do {
        last = seen;
        usleep(300000);
        seen = free_bytes();
    } while (seen != last);
    return seen;
}

static int stamp_is_there(const struct opened *opened)
{
    unsigned char found[STAMP_BYTES] = {0};

    if (cu.cuMemcpyDtoH_v2(found, opened->address, sizeof(found)) != CUDA_SUCCESS)
        return 0;
    return memcmp(found, stamp, sizeof(found)) == 0;
}

static void be_importer(const struct kind *kind, const char *way, int end, pid_t exporter)
{
    struct message message;
    struct opened opened;
    CUresult result;
    size_t before;
    size_t expected; /* to be free again at the end */
    uint64_t closed;

    begin(way);
    receive_message(end, &message);
    before = free_bytes();
    printf("{\"before\": %zu, ", before);
    send_message(end, &message);
    receive_message(end, &message);
    printf("\"exported\": %zu, ", free_bytes());
    result = kind->open(&opened, &message);
    printf("\"open\": %d, ", (int) result);
    if (result == CUDA_SUCCESS) {
        printf("\"opened\": %zu, \"same\": %d, ", free_bytes(), stamp_is_there(&opened));
        kind->close(&opened);
        printf("\"closed\": %zu, ", free_bytes());
        CHECK(kind->open(&opened, &message));
    }
    kill(exporter, SIGKILL);
    waitpid(exporter, NULL, 0);
    expected = before;
    if (result == CUDA_SUCCESS) {
        size_t orphaned = settled_bytes();

        expected = orphaned + bytes;
        printf("\"orphaned\": %zu, \"same_after\": %d, ", orphaned, stamp_is_there(&opened));
        kind->close(&opened);
    }
    if (message.descriptor >= 0)
        close(message.descriptor);
    closed = now_ns();
    while (free_bytes() + bytes / 2 < expected && now_ns() - closed < WAIT_SECONDS * 1000000000ull)
        usleep(200);
    printf("\"free_ns\": %llu, \"left\": %zu, \"expected\": %zu}\n",
           (unsigned long long) (now_ns() - closed), free_bytes(), expected);
}

int main(int argc, char **argv)
{
    const struct kind *kind = kinds;
    const struct kind *end = kinds + sizeof(kinds) / sizeof(kinds[0]);
    int sockets[2];
    pid_t exporter;

    while (argc == 4 && kind < end && strcmp(kind->name, argv[1]) != 0)
        kind++;
    if (argc != 4 || kind == end) {
        fprintf(stderr, "usage: shared handle|descriptor|pool WAY BYTES, for example shared handle "
                        "linked 1073741824\n");
        return BAD_USAGE;
    }
    bytes = strtoull(argv[3], NULL, 10);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) {
        perror("socketpair");
        return FAILED;
    }
    exporter = fork();
    if (exporter < 0) {
        perror("fork");
        return FAILED;
    }
    if (exporter == 0) {
        close(sockets[1]);
        be_exporter(kind, argv[2], sockets[0]);
    }
    close(sockets[0]);
    be_importer(kind, argv[2], sockets[1], exporter);
    return 0;
}
