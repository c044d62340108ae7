/* SPDX-License-Identifier: Apache-2.0 */
/* device.c -- makes the CUDA calls of a program, like a framework would; see device.h. */
#include "programs/replay/device.h"
#include "programs/replay/kernel.h"

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    COPY_BYTES = 4096,      /* of every copy: transfer_takes() sets its duration */
    BLOCK_BYTES = 64 << 10, /* of every allocation */
    ONE_PROCESSOR = 1,      /* of each kernel: so streams overlap wherever they did when recorded */
    DEFAULT_SHARED_BYTES = 48 << 10, /* a kernel that needs more has to opt in */
    ENTRY_BYTES = 1024,              /* at least the length of a kernel's PTX */
};

static const struct program *program;
static CUcontext context;
static CUstream *streams;
static CUfunction *functions;
static CUevent *events;
static CUgraphExec *graphs;
static CUdeviceptr buffer, other_buffer;
static void *pinned;
static char pageable[COPY_BYTES];
/* Tells the simulated driver how long the next copy takes; NULL with any other driver. */
static void (*transfer_takes)(uint64_t ns);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr *blocks; /* allocated ones, the oldest first */
static size_t first_block, block_count, block_room;

static void check(const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "player: %s returned %d\n", call, (int) result);
    _exit(1);
}

#define CHECK(call, ...) check(#call, call(__VA_ARGS__))

/* One element more, since calloc() of none may return NULL. */
static void *make_table(size_t count, size_t size)
{
    void *table = calloc(count + 1, size);

    if (!table)
        check("calloc", CUDA_ERROR_OUT_OF_MEMORY);
    return table;
}

static void open_kernels(void)
{
    uint32_t count = program->header->kernels;
    size_t room = sizeof(KERNEL_HEAD) + (size_t) count * ENTRY_BYTES;
    char *text = make_table(room, 1);
    size_t used = (size_t) snprintf(text, room, "%s", KERNEL_HEAD);
    CUmodule module;

    for (uint32_t i = 0; i < count; i++)
        used += (size_t) snprintf(text + used, room - used, KERNEL_ENTRY, i, i, i, i);
    functions = make_table(count, sizeof(*functions));
    if (count)
        CHECK(cuModuleLoadData, &module, text);
    for (uint32_t i = 0; i < count; i++) {
        char name[32];
        int shared = (int) program->kernels[i].shared_bytes;

        snprintf(name, sizeof(name), KERNEL_NAME, i);
        CHECK(cuModuleGetFunction, &functions[i], module, name);
        if (shared > DEFAULT_SHARED_BYTES)
            CHECK(cuFuncSetAttribute, functions[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                  shared);
    }
    free(text);
}

static CUgraphExec make_graph(const struct program_range *range)
{
    CUgraphNode *made = make_table(range->count, sizeof(*made));
    CUgraphExec executable;
    CUgraph graph;

    CHECK(cuGraphCreate, &graph, 0);
    for (uint32_t i = 0; i < range->count; i++) {
        const struct program_node *node = &program->nodes[range->first + i];
        const struct program_shape *shape = &node->shape;
        uint64_t ns = node->ns, processors = ONE_PROCESSOR;
        void *arguments[] = {&ns, &processors};
        CUDA_KERNEL_NODE_PARAMS parameters = {
            .func = functions[shape->kernel],
            .gridDimX = shape->grid[0],
            .gridDimY = shape->grid[1],
            .gridDimZ = shape->grid[2],
            .blockDimX = shape->block[0],
            .blockDimY = shape->block[1],
            .blockDimZ = shape->block[2],
            .sharedMemBytes = shape->shared_bytes,
            .kernelParams = arguments,
        };
        CUgraphNode after[2];
        size_t count = 0;

        for (int j = 0; j < 2; j++)
            if (node->after[j] < i)
                after[count++] = made[node->after[j]];
        CHECK(cuGraphAddKernelNode, &made[i], graph, after, count, &parameters);
    }
    CHECK(cuGraphInstantiateWithFlags, &executable, graph, 0);
    free(made);
    return executable;
}

void device_open(const struct program *played)
{
    void *found = dlsym(RTLD_DEFAULT, "sim_transfer_takes");
    const struct program_header *header = played->header;
    CUdevice device;

    memcpy(&transfer_takes, &found, sizeof(found));
    program = played;
    CHECK(cuInit, 0);
    CHECK(cuDeviceGet, &device, 0);
    CHECK(cuDevicePrimaryCtxRetain, &context, device);
    CHECK(cuCtxSetCurrent, context);
    open_kernels();
    streams = make_table(header->streams, sizeof(CUstream)); /* the first is the default one */
    for (uint32_t i = 1; i < header->streams; i++)
        CHECK(cuStreamCreate, &streams[i], CU_STREAM_NON_BLOCKING);
    events = make_table(header->events, sizeof(CUevent));
    for (uint32_t i = 0; i < header->events; i++) {
        CHECK(cuEventCreate, &events[i], CU_EVENT_DISABLE_TIMING);
        CHECK(cuEventRecord, events[i], NULL);
    }
    graphs = make_table(header->graphs, sizeof(CUgraphExec));
    for (uint32_t i = 0; i < header->graphs; i++)
        graphs[i] = make_graph(&program->graphs[i]);
    CHECK(cuMemAlloc, &buffer, COPY_BYTES);
    CHECK(cuMemAlloc, &other_buffer, COPY_BYTES);
    CHECK(cuMemAllocHost, &pinned, COPY_BYTES);
    CHECK(cuCtxSynchronize);
}

void device_enter(void)
{
    CHECK(cuCtxSetCurrent, context);
}

static void launch(const struct program_call *call)
{
    const struct program_shape *shape = &call->shape;
    uint64_t ns = call->ns, processors = ONE_PROCESSOR;
    void *arguments[] = {&ns, &processors};

    CHECK(cuLaunchKernel, functions[shape->kernel], shape->grid[0], shape->grid[1], shape->grid[2],
          shape->block[0], shape->block[1], shape->block[2], shape->shared_bytes,
          streams[call->stream], arguments, NULL);
}

/* A copy that blocks goes to pageable memory, or is followed by a wait, as in frameworks. */
static void transfer(const struct program_call *call)
{
    CUstream stream = streams[call->stream];

    if (transfer_takes)
        transfer_takes(call->ns);
    if (call->kind == PROGRAM_COPY_IN)
        CHECK(cuMemcpyHtoDAsync, buffer, pinned, COPY_BYTES, stream);
    else if (call->kind == PROGRAM_COPY_OUT)
        CHECK(cuMemcpyDtoHAsync, call->flags & PROGRAM_BLOCKS ? pageable : pinned, buffer,
              COPY_BYTES, stream);
    else if (call->kind == PROGRAM_COPY_ON)
        CHECK(cuMemcpyDtoDAsync, other_buffer, buffer, COPY_BYTES, stream);
    else
        CHECK(cuMemsetD8Async, buffer, 0, COPY_BYTES, stream);
    if (call->flags & PROGRAM_BLOCKS && call->kind != PROGRAM_COPY_OUT)
        CHECK(cuStreamSynchronize, stream);
}

static void allocate(void)
{
    CUdeviceptr block;

    CHECK(cuMemAlloc, &block, BLOCK_BYTES);
    pthread_mutex_lock(&lock);
    if (block_count == block_room) {
        block_room = 2 * block_room + 64;
        blocks = realloc(blocks, block_room * sizeof(*blocks));
        if (!blocks)
            check("realloc", CUDA_ERROR_OUT_OF_MEMORY);
    }
    blocks[block_count++] = block;
    pthread_mutex_unlock(&lock);
}

/* Free the oldest block; blocks allocated before the recording do not exist here. */
static void free_one(void)
{
    CUdeviceptr block = 0;

    pthread_mutex_lock(&lock);
    if (first_block < block_count)
        block = blocks[first_block++];
    pthread_mutex_unlock(&lock);
    if (block)
        CHECK(cuMemFree, block);
}

/* Never freed: recordings do not say which block a program frees. */
static void allocate_host(void)
{
    void *block;

    CHECK(cuMemAllocHost, &block, COPY_BYTES);
}

static void query(CUevent event)
{
    CUresult result = cuEventQuery(event);

    if (result != CUDA_ERROR_NOT_READY)
        check("cuEventQuery", result);
}

void device_call(const struct program_call *call)
{
    switch ((enum program_kind) call->kind) {
    case PROGRAM_LAUNCH:
        launch(call);
        return;
    case PROGRAM_GRAPH:
        CHECK(cuGraphLaunch, graphs[call->what], streams[call->stream]);
        return;
    case PROGRAM_COPY_IN:
    case PROGRAM_COPY_OUT:
    case PROGRAM_COPY_ON:
    case PROGRAM_FILL:
        transfer(call);
        return;
    case PROGRAM_STREAM_SYNC:
        CHECK(cuStreamSynchronize, streams[call->stream]);
        return;
    case PROGRAM_DEVICE_SYNC:
        CHECK(cuCtxSynchronize);
        return;
    case PROGRAM_EVENT_SYNC:
        CHECK(cuEventSynchronize, events[call->what]);
        return;
    case PROGRAM_EVENT_RECORD:
        CHECK(cuEventRecord, events[call->what], streams[call->stream]);
        return;
    case PROGRAM_EVENT_WAIT:
        CHECK(cuStreamWaitEvent, streams[call->stream], events[call->what], 0);
        return;
    case PROGRAM_EVENT_QUERY:
        query(events[call->what]);
        return;
    case PROGRAM_ALLOCATE:
        allocate();
        return;
    case PROGRAM_ALLOCATE_HOST:
        allocate_host();
        return;
    case PROGRAM_FREE:
        free_one();
        return;
    case PROGRAM_KINDS:
        return;
    }
}

void device_finish(void)
{
    CHECK(cuCtxSynchronize);
}
