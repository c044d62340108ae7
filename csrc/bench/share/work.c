/* SPDX-License-Identifier: Apache-2.0 */
/* work.c -- synthetic CUDA workload, which only uses device time.
 *
 *   work KIND LENGTH_NS [NUMBER]...   then "FROM UNTIL", ns of CLOCK_MONOTONIC, on standard input
 *
 * It knows nothing of pyvgpu: plain cuda.h, linked to libcuda.so.1. It prints "ready" when it has a
 * context and a kernel, works from FROM until UNTIL and ends with a line of JSON about its
 * launches. Kinds with one stream, or whose streams are alike, are here; kinds.h lists the others.
 */
#include "bench/draw.h"
#include "kinds.h"
#include "program.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    NODES = 100,
    STREAMS = 4,
    CROWD = 4096,
    UNEVEN = 30,
    TURN = 8000,
    BURST_MS = 50,
};

static CUfunction spin;
static uint64_t length_ns;
static uint64_t launches;
static uint64_t launched_ns;
static uint64_t forks;

static void launch(uint64_t ns, unsigned blocks, CUstream stream)
{
    void *arguments[] = {&ns};

    program_check("cuLaunchKernel",
                  cuLaunchKernel(spin, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL));
    launches++;
    launched_ns += ns;
}

static void work_async(void)
{
    CUstream stream = program_stream();

    while (program_goes_on())
        launch(length_ns, BLOCKS, stream);
}

static void work_sync(void)
{
    while (program_goes_on()) {
        launch(length_ns, BLOCKS, NULL);
        program_check("cuCtxSynchronize", cuCtxSynchronize());
    }
}

static CUgraphExec make_graph(CUstream stream)
{
    CUgraphExec executable;
    CUgraph graph;

    program_check("cuStreamBeginCapture",
                  cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < NODES; i++)
        launch(length_ns, BLOCKS, stream);
    program_check("cuStreamEndCapture", cuStreamEndCapture(stream, &graph));
    program_check("cuGraphInstantiateWithFlags",
                  cuGraphInstantiateWithFlags(&executable, graph, 0));
    launches = launched_ns = 0;
    return executable;
}

static void work_graph(void)
{
    CUstream stream = program_stream();
    CUgraphExec executable = make_graph(stream);

    while (program_goes_on()) {
        program_check("cuGraphLaunch", cuGraphLaunch(executable, stream));
        launches += NODES;
        launched_ns += NODES * length_ns;
    }
}

/* Four kernels at a time, a quarter of the device each. */
static void work_streams(void)
{
    CUstream streams[STREAMS];

    for (int i = 0; i < STREAMS; i++)
        streams[i] = program_stream();
    while (program_goes_on())
        for (int i = 0; i < STREAMS; i++)
            launch(length_ns, QUARTER_BLOCKS, streams[i]);
}

/* Alternate bursts and pauses; a burst synchronises every millisecond (or every longer kernel). */
static void work_bursty(void)
{
    uint64_t batch = length_ns < MILLISECOND_NS ? MILLISECOND_NS / length_ns : 1;
    CUstream stream = program_stream();

    while (program_goes_on()) {
        uint64_t began = program_now();

        while (program_now() < began + BURST_MS * MILLISECOND_NS) {
            for (uint64_t i = 0; i < batch; i++)
                launch(length_ns, BLOCKS, stream);
            program_check("cuStreamSynchronize", cuStreamSynchronize(stream));
        }
        program_sleep_until(began + 2 * BURST_MS * MILLISECOND_NS);
    }
}

/* Kernels of all lengths up to this one, each with a grid of its own; synchronises now and then. */
static void work_mixed(void)
{
    static const uint64_t parts[] = {512, 64, 16, 4, 1};
    CUstream stream = program_stream();

    while (program_goes_on()) {
        uint64_t kind = draw() % (sizeof(parts) / sizeof(*parts));

        launch(length_ns / parts[kind], (unsigned) (BLOCKS + kind), stream);
        if (draw() % 64 == 0)
            program_check("cuStreamSynchronize", cuStreamSynchronize(stream));
    }
}

/* One kernel, one grid: its duration grows a hundredfold and back, invisible to the shim. */
static void work_changing(void)
{
    CUstream stream = program_stream();

    for (unsigned round = 0; program_goes_on(); round++) {
        uint64_t ns = round % 2 ? 100 * length_ns : length_ns;
        uint64_t end = program_now() + 500 * MILLISECOND_NS;

        while (program_now() < end && program_goes_on())
            launch(ns, BLOCKS, stream);
        program_check("cuStreamSynchronize", cuStreamSynchronize(stream));
    }
}

static void work_in(unsigned count, unsigned blocks, uint64_t (*length)(void))
{
    static CUstream streams[CROWD];

    for (unsigned i = 0; i < count; i++)
        streams[i] = program_stream();
    for (unsigned i = 0; program_goes_on(); i++)
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

/* More streams than any device can run at once. */
static void work_crowd(void)
{
    work_in(CROWD, BLOCKS, one_length);
}

/* One kernel, one grid: long or short, invisible to the shim. */
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

    program_check("cuStreamBeginCapture",
                  cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    program_check("cuLaunchKernel",
                  cuLaunchKernel(spin, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL));
    expect("cuStreamSynchronize", cuStreamSynchronize(stream),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect("cuLaunchKernel",
           cuLaunchKernel(spin, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL),
           CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    expect("cuStreamEndCapture", cuStreamEndCapture(stream, &graph),
           CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/* Invalidated captures, and work between them. */
static void work_invalid(void)
{
    CUstream stream = program_stream();

    while (program_goes_on()) {
        invalidate_capture(stream);
        for (uint64_t done = 0; done < MILLISECOND_NS; done += length_ns)
            launch(length_ns, BLOCKS, stream);
    }
}

/* Fork repeatedly; in each child a launch fails with NOT_INITIALIZED, and the child exits. */
static void *fork_on(void *unused)
{
    while (program_goes_on()) {
        void *arguments[] = {&length_ns};
        int status = 0;
        pid_t child = fork();

        if (child == 0)
            _exit(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL) !=
                  CUDA_ERROR_NOT_INITIALIZED);
        while (waitpid(child, &status, WNOHANG) == 0)
            program_sleep_until(program_now() + MILLISECOND_NS);
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
    program_sleep_until(program.until_ns);
}

enum driver {
    WITH_DRIVER,
    WITHOUT_DRIVER,
    AT_ONCE /* runs as soon as it is started, without "ready" */
};

static const struct kind {
    const char *name;
    void (*run)(void);
    enum driver driver;
} kinds[] = {
    {"async", work_async, WITH_DRIVER},          {"sync", work_sync, WITH_DRIVER},
    {"graph", work_graph, WITH_DRIVER},          {"streams", work_streams, WITH_DRIVER},
    {"bursty", work_bursty, WITH_DRIVER},        {"mixed", work_mixed, WITH_DRIVER},
    {"crowd", work_crowd, WITH_DRIVER},          {"invalid", work_invalid, WITH_DRIVER},
    {"forking", work_forking, WITH_DRIVER},      {"changing", work_changing, WITH_DRIVER},
    {"uneven", work_uneven, WITH_DRIVER},        {"unevencrowd", work_unevencrowd, WITH_DRIVER},
    {"turning", work_turning, WITH_DRIVER},      {"idle", work_idle, WITH_DRIVER},
    {"heldbyhost", held_by_host, WITH_DRIVER},   {"heldbyevent", held_by_event, WITH_DRIVER},
    {"heldbyvalue", held_by_value, WITH_DRIVER}, {"gated", held_gated, WITH_DRIVER},
    {"pair", threads_pair, WITH_DRIVER},         {"threads", threads_many, WITH_DRIVER},
    {"unseen", shapes_unseen, WITH_DRIVER},      {"cycle", shapes_cycle, WITH_DRIVER},
    {"many", shapes_many, WITH_DRIVER},          {"requests", requests_run, WITH_DRIVER},
    {"brief", brief_run, WITHOUT_DRIVER},        {"briefchild", brief_child, AT_ONCE},
};

static const struct kind *find_kind(const char *name)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        if (strcmp(name, kinds[i].name) == 0)
            return &kinds[i];
    return NULL;
}

static void start(enum driver driver)
{
    if (driver == WITH_DRIVER) {
        program_start();
        spin = program_function(0);
    }
    puts("ready");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const struct kind *kind = argc >= 3 && argc <= 3 + MORE ? find_kind(argv[1]) : NULL;

    length_ns = program.length_ns = kind ? strtoull(argv[2], NULL, 10) : 0;
    if (!length_ns) {
        fputs("usage: work KIND LENGTH_NS [NUMBER]..., such as work async 280000\n", stderr);
        return 2;
    }
    for (int i = 3; i < argc; i++)
        program.more[i - 3] = strtoull(argv[i], NULL, 10);
    if (kind->driver == AT_ONCE) {
        kind->run();
        return 0;
    }
    start(kind->driver);
    if (scanf("%" SCNu64 " %" SCNu64, &program.from_ns, &program.until_ns) != 2)
        return 1;
    program_sleep_until(program.from_ns);
    program.from_ns = program_now();
    kind->run();
    program_tell("began", program.from_ns);
    program_tell("ended", program_now());
    if (launches) {
        program_tell("launches", launches);
        program_tell("launched_ns", launched_ns);
    }
    if (forks)
        program_tell("forks", forks);
    program_print();
    _exit(0); /* without waiting for pending work */
}
