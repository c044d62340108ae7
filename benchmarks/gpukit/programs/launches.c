/* SPDX-License-Identifier: Apache-2.0 */
/* launches.c -- latency of a launch call.
 *
 *   launches kernel|graph WAY THREADS shared|own COUNT IMAGE
 *
 * Each of THREADS launches COUNT empty kernels (or graphs of one) of IMAGE, into one stream that
 * all share or into a stream of its own. Prints the median and the 99th percentile of the calls,
 * and the wall time for each, in ns, and the total memory, as JSON.
 */
#include "cu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 64, WARM_UP = 500, IN_FLIGHT = 256 };

static CUcontext context;
static CUfunction kernel;
static CUstream common;
static CUdeviceptr times;
static int of_graphs;
static size_t count;
static uint32_t *samples;
static uint64_t begins[MOST_THREADS]; /* of the launches that are measured */
static pthread_barrier_t ready;

static char *read_image(const char *path)
{
    FILE *file = fopen(path, "rb");
    static char image[1 << 16]; /* of text: ends with a zero */

    if (!file || fread(image, 1, sizeof(image) - 1, file) == 0) {
        perror(path);
        exit(FAILED);
    }
    fclose(file);
    return image;
}

static void launch_kernel(CUstream stream)
{
    uint64_t steps = 0;
    void *arguments[] = {&steps, &times};

    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, NULL));
}

static CUgraphExec make_graph(CUstream stream)
{
    CUgraph graph;
    CUgraphExec made;

    CHECK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch_kernel(stream);
    CHECK(cu.cuStreamEndCapture(stream, &graph));
    CHECK(cu.cuGraphInstantiateWithFlags(&made, graph, 0));
    CHECK(cu.cuGraphDestroy(graph));
    return made;
}

static void *work(void *argument)
{
    uint32_t *own = samples + (size_t) argument * count;
    CUstream stream = common;
    CUgraphExec graph = NULL;

    CHECK(cu.cuCtxSetCurrent(context));
    if (!stream)
        CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (of_graphs) {
        CUstream capturing;

        CHECK(cu.cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
        graph = make_graph(capturing);
    }
    for (size_t i = 0; i < WARM_UP + count; i++) {
        uint64_t begin = now_ns();
        uint64_t took;

        if (graph)
            CHECK(cu.cuGraphLaunch(graph, stream));
        else
            launch_kernel(stream);
        took = now_ns() - begin;
        if (i >= WARM_UP)
            own[i - WARM_UP] = took < UINT32_MAX ? (uint32_t) took : UINT32_MAX;
        if (i % IN_FLIGHT == IN_FLIGHT - 1)
            CHECK(cu.cuStreamSynchronize(stream));
        if (i == WARM_UP - 1) {
            CHECK(cu.cuStreamSynchronize(stream));
            pthread_barrier_wait(&ready);
            begins[(size_t) argument] = now_ns();
        }
    }
    CHECK(cu.cuStreamSynchronize(stream));
    return NULL;
}

static int compare(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *) left;
    uint32_t b = *(const uint32_t *) right;

    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    pthread_t threads[MOST_THREADS];
    size_t many = argc == 7 ? strtoul(argv[3], NULL, 10) : 0;
    CUmodule module;
    uint64_t begin = UINT64_MAX;
    uint64_t end;
    size_t available;
    size_t total;

    if (many < 1 || many > MOST_THREADS || (count = strtoul(argv[5], NULL, 10)) < 1) {
        fprintf(stderr, "usage: launches kernel|graph WAY THREADS shared|own COUNT IMAGE, for "
                        "example launches kernel linked 4 own 20000 kernels.ptx\n");
        return BAD_USAGE;
    }
    of_graphs = strcmp(argv[1], "graph") == 0;
    context = cu_begin(argv[2]);
    CHECK(cu.cuModuleLoadData(&module, read_image(argv[6])));
    CHECK(cu.cuModuleGetFunction(&kernel, module, "sim_work"));
    CHECK(cu.cuMemAlloc_v2(&times, 16));
    if (strcmp(argv[4], "shared") == 0)
        CHECK(cu.cuStreamCreate(&common, CU_STREAM_NON_BLOCKING));
    samples = calloc(many * count, sizeof(*samples));
    if (!samples) {
        perror("calloc");
        return FAILED;
    }
    pthread_barrier_init(&ready, NULL, (unsigned) many);
    for (size_t i = 0; i < many; i++)
        if (pthread_create(&threads[i], NULL, work, (void *) i) != 0)
            return FAILED;
    for (size_t i = 0; i < many; i++)
        pthread_join(threads[i], NULL);
    end = now_ns();
    for (size_t i = 0; i < many; i++)
        begin = begins[i] < begin ? begins[i] : begin;
    qsort(samples, many * count, sizeof(*samples), compare);
    CHECK(cu.cuMemGetInfo_v2(&available, &total));
    printf("{\"median\": %u, \"percentile\": %u, \"each\": %llu, \"total\": %zu}\n",
           samples[many * count / 2], samples[many * count * 99 / 100],
           (unsigned long long) ((end - begin) / (many * count)), total);
    return 0;
}
