/* SPDX-License-Identifier: Apache-2.0 */
/* test_graphmemory.c -- graphs that count on their memory, beside trims, one step at a time.
 *
 * The driver is a script: it holds what launches make it hold, and while it trims, others do what
 * the test says.
 */
#include "check.h"
#include "cuda/graphmemory.h"
#include "cuda/pool.h"
#include "growth_edge.h"

/* Of the edge, what graphs need beyond that. */
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

static void a_launch_again_is_charged_once(void)
{
    begin();
    launch();
    launch();
}

static void a_launch_after_a_trim_is_charged_again(void)
{
    begin();
    launch();
    cuDeviceGraphMemTrim(0);
    CHECK_EQUAL("nothing is charged", charged(), 0);
    launch();
}

static void a_launch_that_ends_while_others_trim_leaves_nothing_to_count_on(void)
{
    begin();
    before_trim = launch;
    cuDeviceGraphMemTrim(0);
    before_trim = NULL;
    CHECK_EQUAL("nothing is charged", charged(), 0);
    launch();
}

static void a_launch_after_the_memory_went_while_others_trim(void)
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
    a_launch_again_is_charged_once();
    a_launch_after_a_trim_is_charged_again();
    a_launch_that_ends_while_others_trim_leaves_nothing_to_count_on();
    a_launch_after_the_memory_went_while_others_trim();
    scratch_remove(&scratch);
    return check_end();
}
