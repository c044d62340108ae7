/* SPDX-License-Identifier: Apache-2.0 */
/* tenant.c -- runs kernels of one length for some seconds, and reports when the device ran them.
 *
 *   tenant WAY STEPS SECONDS BATCH AHEAD EACH IMAGE
 *
 * Launches the kernel sim_work of IMAGE with STEPS on every processor. An event follows each BATCH
 * of launches, and AHEAD batches are under way at most; with 1 and 1 it waits for each kernel.
 * Prints `ready` and waits for a line. Prints as JSON how many kernels there were, the median and
 * the 99th percentile of the time from the last launch of a batch until it was seen to be done, us,
 * for how long it launched late because it had no processor, ns (null if the kernel does not say),
 * and [begin, end] of the last of EACH kernels by the device's own clock, ns.
 */
#include "cu.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    NOTED = 1 << 16, /* kernels at most; further ones write over the first */
    LATENCIES = 1 << 16,
    MOST_AHEAD = 256,
};

struct batch {
    CUevent done;
    uint64_t launched;
};

static uint64_t words[2 * NOTED];
static uint64_t latencies[LATENCIES];
static size_t latency_count;

static CUfunction load_kernel(const char *path)
{
    static char image[1 << 16]; /* of text: ends with a zero */
    FILE *file = fopen(path, "rb");
    CUmodule module;
    CUfunction kernel;

    if (!file || fread(image, 1, sizeof(image) - 1, file) == 0) {
        perror(path);
        exit(FAILED);
    }
    fclose(file);
    CHECK(cu.cuModuleLoadData(&module, image));
    CHECK(cu.cuModuleGetFunction(&kernel, module, "sim_work"));
    return kernel;
}

/* The time for which this thread was ready to run and had no processor, ns: the second word of its
 * *schedstat*. -1 if the kernel has none. */
static int64_t queued_ns(int schedstat)
{
    char text[64] = "";
    unsigned long long queued;

    if (pread(schedstat, text, sizeof(text) - 1, 0) < 0)
        return -1;
    return sscanf(text, "%*u %llu", &queued) == 1 ? (int64_t) queued : -1;
}

/* Return the part of the time since the last call for which this thread waited for a processor, ns,
 * if the device has finished the batch *before* and so may have had nothing of this program to do.
 * *queued* is the time of all waits until then. */
static int64_t late_ns(int schedstat, const struct batch *before, int64_t *queued)
{
    int64_t last = *queued;

    *queued = queued_ns(schedstat);
    return cu.cuEventQuery(before->done) == 0 ? *queued - last : 0;
}

static void wait_for(const struct batch *batch)
{
    CHECK(cu.cuEventSynchronize(batch->done));
    latencies[latency_count++ % LATENCIES] = now_ns() - batch->launched;
}

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *) left;
    uint64_t b = *(const uint64_t *) right;

    return (a > b) - (a < b);
}

/* Of the groups of kernels, the last one may not be whole. */
static void print(size_t count, size_t each, int64_t late)
{
    size_t noted = count / each < NOTED ? count / each : NOTED;
    size_t known = latency_count < LATENCIES ? latency_count : LATENCIES;

    qsort(latencies, known, sizeof(latencies[0]), compare);
    printf("{\"count\": %zu, \"p50\": %g, \"p99\": %g, \"late_ns\": ", count,
           known ? (double) latencies[known / 2] / 1000 : 0,
           known ? (double) latencies[known * 99 / 100] / 1000 : 0);
    if (late < 0)
        printf("null");
    else
        printf("%lld", (long long) late);
    printf(", \"kernels\": [");
    for (size_t i = 0; i < noted; i++)
        printf("%s[%llu, %llu]", i ? ", " : "", (unsigned long long) words[2 * i],
               (unsigned long long) words[2 * i + 1]);
    printf("]}\n");
}

int main(int argc, char **argv)
{
    uint64_t steps = argc == 8 ? strtoull(argv[2], NULL, 10) : 0;
    double seconds = argc == 8 ? atof(argv[3]) : 0;
    size_t size = argc == 8 ? strtoul(argv[4], NULL, 10) : 0;
    size_t ahead = argc == 8 ? strtoul(argv[5], NULL, 10) : 0;
    size_t each = argc == 8 ? strtoul(argv[6], NULL, 10) : 0;
    struct batch batches[MOST_AHEAD];
    CUdeviceptr times;
    CUfunction kernel;
    CUstream stream;
    int64_t late = 0, queued;
    size_t count = 0;
    uint64_t until;
    int processors, schedstat;

    if (!steps || !(seconds > 0) || !size || !each || ahead < 1 || ahead > MOST_AHEAD) {
        fprintf(stderr, "usage: tenant WAY STEPS SECONDS BATCH AHEAD EACH IMAGE, for example "
                        "tenant linked 300000 2.5 1 64 1 kernels.ptx\n");
        return BAD_USAGE;
    }
    cu_begin(argv[1]);
    kernel = load_kernel(argv[7]);
    CHECK(cu.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    CHECK(cu.cuMemAlloc_v2(&times, sizeof(words)));
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < ahead; i++)
        CHECK(cu.cuEventCreate(&batches[i].done, 0));
    puts("ready");
    wait_for_line();
    schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    queued = queued_ns(schedstat);
    until = now_ns() + (uint64_t) (seconds * 1e9);
    for (size_t number = 0; now_ns() < until; number++) {
        struct batch *batch = &batches[number % ahead];

        if (number >= ahead)
            wait_for(batch);
        for (size_t i = 0; i < size; i++, count++) {
            CUdeviceptr out = times + 16 * (count / each % NOTED);
            void *arguments[] = {&steps, &out};

            batch->launched = now_ns();
            CHECK(cu.cuLaunchKernel(kernel, (unsigned) processors, 1, 1, 32, 1, 1, 0, stream,
                                    arguments, NULL));
        }
        if (number > 0)
            late += late_ns(schedstat, &batches[(number - 1) % ahead], &queued);
        CHECK(cu.cuEventRecord(batch->done, stream));
    }
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(cu.cuMemcpyDtoH_v2(words, times, sizeof(words)));
    print(count, each, queued < 0 ? -1 : late);
    return 0;
}
