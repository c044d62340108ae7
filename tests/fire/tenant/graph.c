/* SPDX-License-Identifier: Apache-2.0 */
/* graph.c -- graph memory: from added nodes, from captured nodes, and without a free node. */
#include "families.h"

static void end_graph(struct hand *hand, struct item *item)
{
    MUST(cuGraphExecDestroy(item->executable));
    MUST(cuGraphDestroy(item->graph));
}

/* Instantiate and launch; false if there is no memory for it. */
static bool run(struct hand *hand, struct item *item)
{
    if (!GOT(cuGraphInstantiate(&item->executable, item->graph, 0))) {
        MUST(cuGraphDestroy(item->graph));
        return false;
    }
    if (GOT(cuGraphLaunch(item->executable, hand->stream)))
        return true;
    end_graph(hand, item);
    return false;
}

static CUgraphNode add_memory(struct hand *hand, struct item *item)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = place_on(item->device)}};
    CUgraphNode node;

    item->size = hand_size(hand);
    params.bytesize = item->size;
    MUST(cuGraphCreate(&item->graph, 0));
    MUST(cuGraphAddMemAllocNode(&node, item->graph, NULL, 0, &params));
    item->address = params.dptr;
    return node;
}

static bool take_graph(struct hand *hand, struct item *item)
{
    CUgraphNode node = add_memory(hand, item), last;

    MUST(cuGraphAddMemFreeNode(&last, item->graph, &node, 1, item->address));
    return run(hand, item);
}

static void give_graph(struct hand *hand, struct item *item)
{
    if (hand_chance(hand, 2))
        GOT(cuGraphLaunch(item->executable, hand->stream));
    MUST(cuStreamSynchronize(hand->stream));
    end_graph(hand, item);
}

/* Memory that a graph allocates and does not free outlives its launch. */
static bool take_kept(struct hand *hand, struct item *item)
{
    add_memory(hand, item);
    if (!run(hand, item))
        return false;
    hand_mark(hand, item);
    return true;
}

static void give_kept(struct hand *hand, struct item *item)
{
    MUST(cuMemFreeAsync(item->address, hand->stream));
    MUST(cuStreamSynchronize(hand->stream));
    end_graph(hand, item);
}

static bool take_captured(struct hand *hand, struct item *item)
{
    CUresult result;

    item->size = hand_size(hand);
    MUST(cuStreamBeginCapture(hand->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    result = cuMemAllocAsync(&item->address, item->size, hand->stream);
    if (result == CUDA_SUCCESS)
        MUST(cuMemFreeAsync(item->address, hand->stream));
    MUST(cuStreamEndCapture(hand->stream, &item->graph));
    if (hand_got(hand, "cuMemAllocAsync", result))
        return run(hand, item);
    MUST(cuGraphDestroy(item->graph));
    return false;
}

const struct family family_graph = {
    .name = "graph", .take = take_graph, .give = give_graph, .needs_context = true};
const struct family family_graph_kept = {
    .name = "kept graph", .take = take_kept, .give = give_kept, .needs_context = true};
const struct family family_captured = {
    .name = "captured graph", .take = take_captured, .give = give_graph, .needs_context = true};
