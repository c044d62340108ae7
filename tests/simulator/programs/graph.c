/* SPDX-License-Identifier: Apache-2.0 */
/* graph.c -- graphs built by calls and by capture: their structure, and their effects. */
#include "check.h"

static CUfunction k_fill, k_copy;
static CUstream stream;

static uint32_t word(CUdeviceptr address)
{
    uint32_t value = 0;

    CHECK(cuMemcpyDtoH(&value, address, 4));
    return value;
}

static size_t nodes_of(CUgraph graph)
{
    size_t count = 0;

    CHECK(cuGraphGetNodes(graph, NULL, &count));
    return count;
}

static void count_call(void *data)
{
    ++*(int *) data;
}

static CUgraphNode add_fill(CUgraph graph, CUgraphNode behind, CUdeviceptr address, uint32_t value)
{
    uint64_t count = 1;
    void *parameters[] = {&address, &value, &count, &count};
    CUDA_KERNEL_NODE_PARAMS params = {.func = k_fill,
                                      .gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 32,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = parameters};
    CUgraphNode node;

    CHECK(cuGraphAddKernelNode(&node, graph, &behind, behind ? 1 : 0, &params));
    value = 0; /* the node has its own copy */
    return node;
}

static void by_hand(void)
{
    CUDA_MEMSET_NODE_PARAMS set = {.elementSize = 4, .width = 4, .height = 1, .value = 1};
    CUDA_HOST_NODE_PARAMS host = {.fn = count_call};
    CUDA_MEMCPY3D copy = {.WidthInBytes = 4, .Height = 1, .Depth = 1};
    CUgraphNode first, second, third, fourth, from[4], to[4], empty;
    CUgraphExecUpdateResultInfo info;
    CUgraph graph, clone, child;
    CUgraphNodeType type;
    CUgraphExec exec;
    CUdeviceptr a;
    size_t count;
    int calls = 0;

    CHECK(cuMemAlloc(&a, 16));
    set.dst = a;
    host.userData = &calls;
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = a;
    copy.dstDevice = a + 4;
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemsetNode(&first, graph, NULL, 0, &set, NULL));
    second = add_fill(graph, first, a, 7);
    CHECK(cuGraphAddMemcpyNode(&third, graph, &second, 1, &copy, NULL));
    CHECK(cuGraphAddHostNode(&fourth, graph, &third, 1, &host));
    EXPECT(nodes_of(graph) == 4);
    CHECK(cuGraphNodeGetType(second, &type));
    EXPECT(type == CU_GRAPH_NODE_TYPE_KERNEL);
    count = 4;
    CHECK(cuGraphGetEdges(graph, from, to, NULL, &count));
    EXPECT(count == 3 && from[0] == first && to[0] == second);
    count = 0;
    CHECK(cuGraphGetRootNodes(graph, NULL, &count));
    EXPECT(count == 1);
    CHECK(cuGraphClone(&clone, graph));
    CHECK(cuGraphNodeFindInClone(&empty, second, clone));
    EXPECT(empty != second);

    CHECK(cuGraphInstantiate(&exec, graph, 0));
    CHECK(cuGraphUpload(exec, stream));
    for (int i = 0; i < 3; i++)
        CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(word(a) == 7 && word(a + 4) == 7 && word(a + 8) == 1 && calls == 3);

    /* Changed by an update with a graph of the same shape; refused with another shape. */
    CHECK(cuGraphNodeFindInClone(&second, second, clone));
    set.value = 5;
    CHECK(cuGraphNodeFindInClone(&first, first, clone));
    CHECK(cuGraphMemsetNodeSetParams(first, &set));
    CHECK(cuGraphExecUpdate(exec, clone, &info));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(word(a) == 7 && word(a + 8) == 5);
    CHECK(cuGraphDestroyNode(second));
    EXPECT(nodes_of(clone) == 3);
    EXPECT_RESULT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, clone, &info));
    CHECK(cuGraphDestroy(clone));

    /* As a child of another. */
    CHECK(cuGraphCreate(&child, 0));
    CHECK(cuGraphAddChildGraphNode(&first, child, NULL, 0, graph));
    CHECK(cuGraphAddEmptyNode(&empty, child, &first, 1));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphInstantiate(&exec, child, 0));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(calls == 5 && word(a + 8) == 1);
    CHECK(cuGraphExecDestroy(exec));

    /* A cycle cannot be instantiated. */
    CHECK(cuGraphAddDependencies(child, &empty, &first, NULL, 1));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, child, 0));
    CHECK(cuGraphDestroy(child));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(NULL));
    CHECK(cuMemFree(a));
}

static void by_capture(void)
{
    CUstreamCaptureStatus status;
    CUevent fork, join;
    CUgraphExec exec;
    CUdeviceptr a, b;
    CUstream other;
    CUgraph graph;
    uint64_t bytes = 4, count = 1;
    uint32_t value = 21;
    cuuint64_t id;
    int calls = 0;

    CHECK(cuMemAlloc(&a, 4));
    CHECK(cuMemAlloc(&b, 4));
    CHECK(cuMemsetD32(a, 0, 1));
    CHECK(cuMemsetD32(b, 0, 1));
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    CHECK(cuStreamIsCapturing(stream, &status));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(launch(k_fill, stream, 1, &a, &value, &count, NULL));
    CHECK(cuEventRecord(fork, stream));
    CHECK(cuStreamWaitEvent(other, fork, 0));
    CHECK(launch(k_copy, other, 1, &b, &a, &bytes, NULL));
    CHECK(cuLaunchHostFunc(stream, count_call, &calls));
    CHECK(cuEventRecord(join, other));
    EXPECT_RESULT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(join));
    CHECK(cuStreamWaitEvent(stream, join, 0));
    CHECK(cuMemsetD32Async(a, 3, 1, stream));
    CHECK(cuStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL, NULL));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id > 0);
    CHECK(cuStreamEndCapture(stream, &graph));
    EXPECT(nodes_of(graph) == 4);
    CHECK(cuStreamSynchronize(stream));
    EXPECT(word(a) == 0 && word(b) == 0 && calls == 0); /* nothing was done yet */
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(word(b) == 21 && word(a) == 3 && calls == 1);
    CHECK(cuGraphExecDestroy(exec));

    /* A prohibited call invalidates a capture; an unjoined capture cannot be ended. */
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(stream));
    EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuEventRecord(fork, stream));
    CHECK(cuStreamWaitEvent(other, fork, 0));
    CHECK(launch(k_fill, other, 1, &a, &value, &count, NULL));
    EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
    EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                  cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuStreamIsCapturing(other, &status));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(cuEventDestroy(fork));
    CHECK(cuEventDestroy(join));
    CHECK(cuStreamDestroy(other));
    CHECK(cuMemFree(a));
    CHECK(cuMemFree(b));
}

struct changes {
    CUresult answer;
    int times;
    CUgraphNodeType type;
};

static CUresult count_change(void *data, CUgraphNode node, const CUgraphNodeParams *before,
                             const CUgraphNodeParams *now, CUgraphRecaptureStatus status)
{
    struct changes *changes = data;

    EXPECT(node && before->type == now->type && status == CU_GRAPH_RECAPTURE_ELIGIBLE_FOR_UPDATE);
    changes->times++;
    changes->type = now->type;
    return changes->answer;
}

/* One kernel and one memset; with *also* one more of each. */
static CUresult put_in(CUdeviceptr a, uint32_t value, unsigned int set, int also)
{
    uint64_t count = 1;
    CUresult result = launch(k_fill, stream, 1, &a, &value, &count, NULL);

    if (result == CUDA_SUCCESS)
        result = cuMemsetD32Async(a + 4, set, 1, stream);
    return result == CUDA_SUCCESS && also ? cuMemsetD32Async(a + 8, set, 1, stream) : result;
}

static void by_recapture(void)
{
    const CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    struct changes changes = {CUDA_SUCCESS, 0, CU_GRAPH_NODE_TYPE_EMPTY};
    CUgraph graph, same;
    CUgraphExec exec;
    CUdeviceptr a;

    CHECK(cuMemAlloc(&a, 16));
    CHECK(cuStreamBeginCapture(stream, mode));
    CHECK(put_in(a, 5, 6, 0));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuStreamBeginRecaptureToGraph(stream, mode, graph, count_change, &changes));
    CHECK(put_in(a, 5, 6, 0));
    CHECK(cuStreamEndCapture(stream, &same));
    EXPECT(same == graph && nodes_of(graph) == 2 && changes.times == 0);
    CHECK(cuStreamBeginRecaptureToGraph(stream, mode, graph, count_change, &changes));
    CHECK(put_in(a, 7, 6, 0));
    CHECK(cuStreamEndCapture(stream, &same));
    EXPECT(changes.times == 1 && changes.type == CU_GRAPH_NODE_TYPE_KERNEL);
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    EXPECT(word(a) == 7 && word(a + 4) == 6);
    changes.answer = CUDA_ERROR_UNKNOWN;
    CHECK(cuStreamBeginRecaptureToGraph(stream, mode, graph, count_change, &changes));
    EXPECT_RESULT(CUDA_ERROR_UNKNOWN, put_in(a, 7, 8, 0));
    EXPECT(changes.times == 2 && changes.type == CU_GRAPH_NODE_TYPE_MEMSET);
    EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &same));
    CHECK(cuStreamBeginRecaptureToGraph(stream, mode, graph, NULL, NULL));
    EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, put_in(a, 7, 9, 1));
    EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &same));
    CHECK(cuStreamBeginRecaptureToGraph(stream, mode, graph, NULL, NULL));
    EXPECT_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &same));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  cuStreamBeginRecaptureToGraph(stream, mode, NULL, NULL, NULL));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemFree(a));
}

static void into_graphics_commands(void)
{
    CUctxCigParam blob = {CIG_DATA_TYPE_NV_BLOB, &blob};
    CUctxCreateParams params = {.cigParams = &blob};
    CUstreamCigParam commands = {STREAM_CIG_DATA_TYPE_VULKAN_COMMAND_BUFFER_HANDLE_NV, &blob};
    CUstreamCigCaptureParams capture = {&commands};
    CUcontext before, graphics;
    CUstream own;
    CUdeviceptr a;

    CHECK(cuMemAlloc(&a, 4));
    CHECK(cuMemsetD32(a, 3, 1));
    EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuStreamBeginCaptureToCig(stream, &capture));
    CHECK(cuCtxGetCurrent(&before));
    CHECK(cuCtxCreate_v4(&graphics, &params, 0, 0));
    CHECK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamBeginCaptureToCig(own, &capture));
    EXPECT_RESULT(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCaptureToCig(own, &capture));
    CHECK(cuMemsetD32Async(a, 4, 1, own));
    CHECK(cuStreamEndCaptureToCig(own));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuStreamEndCaptureToCig(own));
    CHECK(cuStreamSynchronize(own));
    EXPECT(word(a) == 3);
    CHECK(cuMemsetD32Async(a, 5, 1, own));
    CHECK(cuStreamSynchronize(own));
    EXPECT(word(a) == 5);
    CHECK(cuCtxDestroy(graphics));
    CHECK(cuCtxSetCurrent(before));
    CHECK(cuMemFree(a));
}

int main(void)
{
    open_device(0);
    k_fill = load_kernel("sim_fill");
    k_copy = load_kernel("sim_copy");
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    by_hand();
    by_capture();
    by_recapture();
    into_graphics_commands();
    puts("ok");
    return 0;
}
