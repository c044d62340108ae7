/* SPDX-License-Identifier: Apache-2.0 */
/* graphmemory.c -- graph memory: allocated at the launch, kept until it is trimmed. */
#include "check.h"

#define CHUNK (32 * MIB)

static CUstream stream;
static size_t before;

static CUDA_MEM_ALLOC_NODE_PARAMS params_of(size_t bytes)
{
    return (CUDA_MEM_ALLOC_NODE_PARAMS) {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
        .bytesize = bytes,
    };
}

static CUgraphNode add_fill(CUgraph graph, CUgraphNode before_it, CUdeviceptr address,
                            unsigned int value)
{
    CUDA_MEMSET_NODE_PARAMS params = {
        .dst = address, .value = value, .elementSize = 4, .width = 1, .height = 1};
    CUcontext context;
    CUgraphNode node;

    CHECK(cuCtxGetCurrent(&context));
    CHECK(cuGraphAddMemsetNode(&node, graph, &before_it, 1, &params, context));
    return node;
}

static uint32_t word(CUdeviceptr address)
{
    uint32_t value = 0;

    CHECK(cuMemcpyDtoH(&value, address, 4));
    return value;
}

static cuuint64_t graph_attribute(CUgraphMem_attribute attribute)
{
    cuuint64_t value = 0;

    CHECK(cuDeviceGetGraphMemAttribute(0, attribute, &value));
    return value;
}

#define USED     graph_attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)
#define RESERVED graph_attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)

static void nothing_is_left(void)
{
    CHECK(cuCtxSynchronize());
    EXPECT(USED == 0);
    CHECK(cuDeviceGraphMemTrim(0));
    EXPECT(RESERVED == 0);
    EXPECT(free_bytes() == before);
}

static void nodes_by_hand(void)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = params_of(10 * MIB);
    CUgraphNode allocated, filled, freed;
    CUgraphExec exec, second;
    CUgraph graph, other;

    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemAllocNode(&allocated, graph, NULL, 0, &params));
    EXPECT(params.dptr != 0);
    filled = add_fill(graph, allocated, params.dptr, 9);
    CHECK(cuGraphAddMemFreeNode(&freed, graph, &filled, 1, params.dptr));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  cuGraphAddMemFreeNode(&freed, graph, &filled, 1, params.dptr));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&freed, graph, NULL, 0, 4096));
    EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone(&other, graph));
    EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, cuGraphDestroyNode(filled));

    CHECK(cuGraphInstantiate(&exec, graph, 0));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&second, graph, 0));
    EXPECT(free_bytes() == before);
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(word(params.dptr) == 9);
    EXPECT(USED == 0);
    EXPECT(graph_attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) == 10 * MIB);
    EXPECT(RESERVED == CHUNK);
    EXPECT(before - free_bytes() == CHUNK);
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFree(params.dptr)); /* the graph freed it */

    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuGraphExecDestroy(exec));
    EXPECT(before - free_bytes() == CHUNK); /* kept for the next graph */
    nothing_is_left();
}

/* The allocations of an executable graph cannot change. */
static void update(void)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = params_of(MIB), others = params_of(2 * MIB);
    CUgraphExecUpdateResultInfo info;
    CUgraphNode node, other;
    CUgraph graph, changed;
    CUgraphExec exec;

    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    CHECK(cuGraphAddMemFreeNode(&node, graph, &node, 1, params.dptr));
    CHECK(cuGraphCreate(&changed, 0));
    CHECK(cuGraphAddMemAllocNode(&other, changed, NULL, 0, &others));
    CHECK(cuGraphAddMemFreeNode(&node, changed, &other, 1, others.dptr));
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    CHECK(cuGraphExecUpdate(exec, graph, &info));
    EXPECT_RESULT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, changed, &info));
    EXPECT(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED);
    EXPECT(info.errorNode == other);
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(graph_attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(changed));
    CHECK(cuGraphDestroy(graph));
    nothing_is_left();
}

static CUgraphExec captured_allocation(CUdeviceptr *address, unsigned long long flags)
{
    CUgraphExec exec;
    CUgraph graph;

    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuMemAllocAsync(address, 40 * MIB, stream));
    CHECK(cuMemsetD32Async(*address, 7, 1, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiate(&exec, graph, flags));
    CHECK(cuGraphDestroy(graph));
    return exec;
}

static void left_for_the_stream(void)
{
    CUdeviceptr a;
    CUgraphExec exec = captured_allocation(&a, 0);

    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(a, stream));
    CHECK(cuGraphUpload(exec, stream));
    EXPECT(RESERVED == 2 * CHUNK && USED == 0);
    CHECK(cuGraphLaunch(exec, stream));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, stream)); /* not freed yet */
    EXPECT(word(a) == 7);
    EXPECT(USED == 40 * MIB);
    CHECK(cuDeviceGraphMemTrim(0));
    EXPECT(RESERVED == 2 * CHUNK);
    CHECK(cuMemFreeAsync(a, stream));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(a, stream));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuGraphExecDestroy(exec)); /* its memory exists until it is freed */
    EXPECT(word(a) == 7);
    CHECK(cuMemFree(a));
    nothing_is_left();
}

static void freed_by_the_next_launch(void)
{
    CUdeviceptr a;
    CUgraphExec exec = captured_allocation(&a, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);

    for (int i = 0; i < 3; i++)
        CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(USED == 40 * MIB && RESERVED == 2 * CHUNK);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuMemFree(a));
    nothing_is_left();
}

static void freed_by_another_graph(void)
{
    CUdeviceptr a;
    CUgraphExec exec = captured_allocation(&a, 0), freeing;
    CUgraph graph;

    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuMemFreeAsync(a, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiate(&freeing, graph, 0));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(freeing, stream));
    for (int i = 0; i < 3; i++) {
        CHECK(cuGraphLaunch(exec, stream));
        CHECK(cuGraphLaunch(freeing, stream));
    }
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphExecDestroy(freeing));
    CHECK(cuGraphDestroy(graph));
    nothing_is_left();
}

static void in_a_child(void)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = params_of(1 * MIB);
    CUgraphNodeParams child = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    CUgraphNode allocated, freed, node;
    CUgraph graph, inner;
    CUgraphExec exec;

    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphCreate(&inner, 0));
    CHECK(cuGraphAddMemAllocNode(&allocated, inner, NULL, 0, &params));
    CHECK(cuGraphAddMemFreeNode(&freed, inner, &allocated, 1, params.dptr));
    EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddChildGraphNode(&node, graph, NULL, 0, inner));
    child.graph.graph = inner;
    child.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    CHECK(cuGraphAddNode(&node, graph, NULL, NULL, 0, &child));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(inner));
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(RESERVED == CHUNK);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    nothing_is_left();
}

static void too_much(void)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = params_of(1 * GIB);
    CUgraphNode node = NULL;
    CUgraphExec exec;
    CUgraph graph;

    CHECK(cuGraphCreate(&graph, 0));
    for (size_t i = 0; i <= before / GIB; i++)
        CHECK(cuGraphAddMemAllocNode(&node, graph, node ? &node : NULL, node != NULL, &params));
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuGraphUpload(exec, stream));
    EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuGraphLaunch(exec, stream));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    nothing_is_left();
}

int main(void)
{
    open_device(0);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    before = free_bytes();
    nodes_by_hand();
    update();
    left_for_the_stream();
    freed_by_the_next_launch();
    freed_by_another_graph();
    in_a_child();
    too_much();
    puts("ok");
    return 0;
}
