/* SPDX-License-Identifier: Apache-2.0 */
/* work.c -- a CUDA program of which only the time counts that it takes of the device.
 *
 *   work KIND LENGTH_NS    then "FROM UNTIL", ns of CLOCK_MONOTONIC, on standard input
 *
 * It knows nothing of pyvgpu: plain cuda.h, linked to libcuda.so.1. It says "ready" when it has a
 * context and a kernel, works from FROM until UNTIL and ends with a line of JSON: what it launched.
 */
#include "bench/draw.h"

#include <cuda.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MILLISECOND_NS UINT64_C(1000000)

enum {
    BLOCKS = 1024, /* more than any device has room for at once */
    THREADS = 1024,
    NODES = 100,
    STREAMS = 4,
    QUARTER_BLOCKS = 64, /* two on a processor: 32 of the 132 of an H100 */
    CROWD = 4096,
    UNEVEN = 30,
    TURN = 8000,
    BURST_MS = 50,
};

/* The simulated driver knows the kernel by its name; a real device takes about as long. */
static const char image[] = ".version 7.0\n"
                            ".target sm_70\n"
                            ".address_size 64\n"
                            ".visible .entry sim_spin(.param .u64 ns)\n"
                            "{\n"
                            "    .reg .pred %p<2>;\n"
                            "    .reg .b64 %rd<5>;\n"
                            "    ld.param.u64 %rd1, [ns];\n"
                            "    mul.lo.u64 %rd1, %rd1, 3;\n"
                            "    shr.u64 %rd1, %rd1, 1;\n"
                            "    mov.u64 %rd2, %clock64;\n"
                            "again:\n"
                            "    mov.u64 %rd3, %clock64;\n"
                            "    sub.u64 %rd4, %rd3, %rd2;\n"
                            "    setp.lt.u64 %p1, %rd4, %rd1;\n"
                            "    @%p1 bra again;\n"
                            "    ret;\n"
                            "}\n";

static CUfunction spin;
static uint64_t length_ns;
static uint64_t until_ns;
static uint64_t launches;
static uint64_t launched_ns;
static uint64_t forks;

static void check(const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "work: %s gave %d\n", call, (int) result);
    _exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000 * MILLISECOND_NS + (uint64_t) now.tv_nsec;
}

static void sleep_until(uint64_t then)
{
    struct timespec moment = {(time_t) (then / (1000 * MILLISECOND_NS)),
                              (long) (then % (1000 * MILLISECOND_NS))};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL))
        continue;
}

static int goes_on(void)
{
    return now_ns() < until_ns;
}

static void launch(uint64_t ns, unsigned blocks, CUstream stream)
{
    void *arguments[] = {&ns};

    check("cuLaunchKernel",
          cuLaunchKernel(spin, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL));
    launches++;
    launched_ns += ns;
}

static CUstream make_stream(void)
{
    CUstream stream;

    check("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static void work_async(void)
{
    CUstream stream = make_stream();

    while (goes_on())
        launch(length_ns, BLOCKS, stream);
}

static void work_sync(void)
{
    while (goes_on()) {
        launch(length_ns, BLOCKS, NULL);
        check("cuCtxSynchronize", cuCtxSynchronize());
    }
}

static CUgraphExec make_graph(CUstream stream)
{
    CUgraphExec executable;
    CUgraph graph;

    check("cuStreamBeginCapture", cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < NODES; i++)
        launch(length_ns, BLOCKS, stream);
    check("cuStreamEndCapture", cuStreamEndCapture(stream, &graph));
    check("cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags(&executable, graph, 0));
    launches = launched_ns = 0;
    return executable;
}

static void work_graph(void)
{
    CUstream stream = make_stream();
    CUgraphExec executable = make_graph(stream);

    while (goes_on()) {
        check("cuGraphLaunch", cuGraphLaunch(executable, stream));
        launches += NODES;
        launched_ns += NODES * length_ns;
    }
}

/* Four kernels at a time, a quarter of the device each. */
static void work_streams(void)
{
    CUstream streams[STREAMS];

    for (int i = 0; i < STREAMS; i++)
        streams[i] = make_stream();
    while (goes_on())
        for (int i = 0; i < STREAMS; i++)
            launch(length_ns, QUARTER_BLOCKS, streams[i]);
}

/* Work and pause in turn, a millisecond (or one kernel) waited for at a time. */
static void work_bursty(void)
{
    uint64_t batch = length_ns < MILLISECOND_NS ? MILLISECOND_NS / length_ns : 1;
    CUstream stream = make_stream();

    while (goes_on()) {
        uint64_t began = now_ns();

        while (now_ns() < began + BURST_MS * MILLISECOND_NS) {
            for (uint64_t i = 0; i < batch; i++)
                launch(length_ns, BLOCKS, stream);
            check("cuStreamSynchronize", cuStreamSynchronize(stream));
        }
        sleep_until(began + 2 * BURST_MS * MILLISECOND_NS);
    }
}

/* Kernels of all lengths up to this one, a grid each, and a look at the result now and then. */
static void work_mixed(void)
{
    static const uint64_t parts[] = {512, 64, 16, 4, 1};
    CUstream stream = make_stream();

    while (goes_on()) {
        uint64_t kind = draw() % (sizeof(parts) / sizeof(*parts));

        launch(length_ns / parts[kind], (unsigned) (BLOCKS + kind), stream);
        if (draw() % 64 == 0)
            check("cuStreamSynchronize", cuStreamSynchronize(stream));
    }
}

/* One kernel, one grid: a hundred times as long, and back again, without a word. */
static void work_changing(void)
{
    CUstream stream = make_stream();

    for (unsigned round = 0; goes_on(); round++) {
        uint64_t ns = round % 2 ? 100 * length_ns : length_ns;
        uint64_t end = now_ns() + 500 * MILLISECOND_NS;

        while (now_ns() < end && goes_on())
            launch(ns, BLOCKS, stream);
        check("cuStreamSynchronize", cuStreamSynchronize(stream));
    }
}

static void work_in(unsigned count, unsigned blocks, uint64_t (*length)(void))
{
    static CUstream streams[CROWD];

    for (unsigned i = 0; i < count; i++)
        streams[i] = make_stream();
    for (unsigned i = 0; goes_on(); i++)
        launch(length(), blocks, streams[i % count]);
}

static uint64_t one_length(void)
{
    return length_ns;
}

static uint64_t any_length(void)
{
    return draw() % 2 ? length_ns : length_ns / UNEVEN;
}

static uint64_t length_in_turn(void)
{
    return launches / TURN % 2 ? length_ns : length_ns / UNEVEN;
}

/* More streams than any device has room for at once. */
static void work_crowd(void)
{
    work_in(CROWD, BLOCKS, one_length);
}

/* One kernel, one grid: long or short, without a word. */
static void work_uneven(void)
{
    work_in(STREAMS, QUARTER_BLOCKS, any_length);
}

static void work_unevencrowd(void)
{
    work_in(CROWD, BLOCKS, any_length);
}

/* The same, many in a row. */
static void work_turning(void)
{
    work_in(STREAMS, QUARTER_BLOCKS, length_in_turn);
}

static void expect(const char *call, CUresult result, CUresult expected)
{
    if (result == expected)
        return;
    fprintf(stderr, "work: %s gave %d, not %d\n", call, (int) result, (int) expected);
    _exit(1);
}

static void invalidate_capture(CUstream stream)
{
    void *arguments[] = {&length_ns};
    CUgraph graph;

    check("cuStreamBeginCapture", cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    check("cuLaunchKernel",
          cuLaunchKernel(spin, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL));
    expect("cuStreamSynchronize", cuStreamSynchronize(stream),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect("cuLaunchKernel",
           cuLaunchKernel(spin, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL),
           CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    expect("cuStreamEndCapture", cuStreamEndCapture(stream, &graph),
           CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/* Captures that come to nothing, and work between them. */
static void work_invalid(void)
{
    CUstream stream = make_stream();

    while (goes_on()) {
        invalidate_capture(stream);
        for (uint64_t done = 0; done < MILLISECOND_NS; done += length_ns)
            launch(length_ns, BLOCKS, stream);
    }
}

/* Fork again and again; a child can use no driver, is told so, and is gone. */
static void *fork_on(void *unused)
{
    while (goes_on()) {
        void *arguments[] = {&length_ns};
        int status = 0;
        pid_t child = fork();

        if (child == 0)
            _exit(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL) !=
                  CUDA_ERROR_NOT_INITIALIZED);
        while (waitpid(child, &status, WNOHANG) == 0)
            sleep_until(now_ns() + MILLISECOND_NS);
        if (status != 0) {
            fprintf(stderr, "work: a child ended with %d\n", status);
            _exit(1);
        }
        forks++;
    }
    return unused;
}

static void work_forking(void)
{
    pthread_t thread;

    pthread_create(&thread, NULL, fork_on, NULL);
    work_async();
    pthread_join(thread, NULL);
}

static void work_idle(void)
{
    sleep_until(until_ns);
}

static const struct {
    const char *name;
    void (*run)(void);
} kinds[] = {
    {"async", work_async},       {"sync", work_sync},       {"graph", work_graph},
    {"streams", work_streams},   {"bursty", work_bursty},   {"mixed", work_mixed},
    {"crowd", work_crowd},       {"invalid", work_invalid}, {"forking", work_forking},
    {"changing", work_changing}, {"uneven", work_uneven},   {"unevencrowd", work_unevencrowd},
    {"turning", work_turning},   {"idle", work_idle},
};

static void start(void)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;

    check("cuInit", cuInit(0));
    check("cuDeviceGet", cuDeviceGet(&device, 0));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    check("cuModuleLoadData", cuModuleLoadData(&module, image));
    check("cuModuleGetFunction", cuModuleGetFunction(&spin, module, "sim_spin"));
    puts("ready");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    uint64_t from;
    size_t kind = 0;

    length_ns = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    while (argc == 3 && kind < sizeof(kinds) / sizeof(*kinds) &&
           strcmp(argv[1], kinds[kind].name) != 0)
        kind++;
    if (argc != 3 || !length_ns || kind == sizeof(kinds) / sizeof(*kinds)) {
        fputs("usage: work KIND LENGTH_NS, such as work async 280000\n", stderr);
        return 2;
    }
    start();
    if (scanf("%" SCNu64 " %" SCNu64, &from, &until_ns) != 2)
        return 1;
    sleep_until(from);
    from = now_ns();
    kinds[kind].run();
    printf("{\"began\": %" PRIu64 ", \"ended\": %" PRIu64 ", \"launches\": %" PRIu64
           ", \"launched_ns\": %" PRIu64 ", \"forks\": %" PRIu64 "}\n",
           from, now_ns(), launches, launched_ns, forks);
    fflush(stdout);
    _exit(0); /* what still waits is not waited for */
}
