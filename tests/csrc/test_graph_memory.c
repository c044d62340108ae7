/* SPDX-License-Identifier: Apache-2.0 */
/* test_graph_memory.c -- charges of graph memory with concurrent trims, one step at a time.
 *
 * The driver is scripted: it holds the memory of launches, and during a trim it calls the test's
 * concurrent action.
 */
#include "check.h"
#include "shim/cuda/memory/graph_memory.h"
#include "shim/cuda/memory/pool.h"
#include "pool_charge_edge.h"

/* Further stubs that graphs need. */
uint64_t charge_size(uint64_t bytes)
{
    return bytes;
}

int pool_device(const CUmemPoolProps *props)
{
    (void) props;
    return 0;
}

static const char graph[1]; /* its name is its address */
static const struct graph_needs needs = {.bytes = {32 * MIB}, .any = 1};
static uint64_t held;
static void (*before_trim)(void);
static void (*after_trim)(void);

static CUresult ask_held(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
    (void) ordinal;
    (void) attribute;
    *(cuuint64_t *) value = held;
    return CUDA_SUCCESS;
}

static CUresult trim_all(CUdevice ordinal)
{
    (void) ordinal;
    if (before_trim)
        before_trim();
    held = 0;
    if (after_trim)
        after_trim();
    return CUDA_SUCCESS;
}

/* What is in use is charged at every step. */
static void launch(void)
{
    struct graph_claims claims;

    CHECK_EQUAL("reserved", graph_memory_reserve(&claims, &needs, graph, NULL), CUDA_SUCCESS);
    held = 32 * MIB;
    CHECK_EQUAL("what the driver takes is charged", charged() >= held, 1);
    graph_memory_settle(&claims, graph);
    CHECK_EQUAL("what it holds is charged", charged(), held);
}

static void begin(void)
{
    before_trim = after_trim = NULL;
    cuDeviceGraphMemTrim(0);
    CHECK_EQUAL("nothing is charged", charged(), 0);
}

static void second_launch_is_not_charged_again(void)
{
    begin();
    launch();
    launch();
}

static void launch_after_trim_is_charged_again(void)
{
    begin();
    launch();
    cuDeviceGraphMemTrim(0);
    CHECK_EQUAL("nothing is charged", charged(), 0);
    launch();
}

static void launch_during_trim_leaves_no_reserved_memory(void)
{
    begin();
    before_trim = launch;
    cuDeviceGraphMemTrim(0);
    before_trim = NULL;
    CHECK_EQUAL("nothing is charged", charged(), 0);
    launch();
}

static void launch_after_memory_was_trimmed_concurrently(void)
{
    begin();
    launch();
    after_trim = launch;
    cuDeviceGraphMemTrim(0);
    after_trim = NULL;
    launch();
}

int main(void)
{
    struct scratch scratch = edge_open();

    driver.cuDeviceGetGraphMemAttribute = ask_held;
    driver.cuDeviceGraphMemTrim = trim_all;
    second_launch_is_not_charged_again();
    launch_after_trim_is_charged_again();
    launch_during_trim_leaves_no_reserved_memory();
    launch_after_memory_was_trimmed_concurrently();
    scratch_remove(&scratch);
    return check_end();
}
