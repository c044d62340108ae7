/* SPDX-License-Identifier: Apache-2.0 */
/* tenant.c -- an ordinary CUDA program, for the demonstration and the tests.
 *
 *   tenant steady BYTES [SECONDS]   compute in BYTES of device memory, check every word, repeat
 *   tenant grow STEP [PAUSE_MS]     allocate STEP more at a time; if refused, keep it and retry
 *   tenant hold BYTES               allocate BYTES and hold them
 *   tenant spin MICROSECONDS        launch kernels of that length, and keep the stream full
 *   tenant notebook BYTES           hold BYTES; for each line of input, a number of milliseconds,
 *                                   work for so long and check every word
 *
 * It knows nothing of pyvgpu: plain cuda.h, linked to libcuda.so.1. Each event is one line of JSON
 * on standard output; finished kernels are reported with the time, by CLOCK_MONOTONIC. It ends when
 * standard input does, or after SECONDS. The exit code is 0, 1 after an unexpected CUDA error or a
 * wrong word, 2 for invalid arguments.
 */
#include "programs/demo/kernels.h"

#include <cuda.h>

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    THREADS = 256,
    BLOCKS = 1024,
    CHUNK_WORDS = 1 << 20, /* copied back at a time */
    ASK_AGAIN_MS = 200,
    PAUSE_MS = 100,      /* between rounds; others need the CPU, too */
    MOST_BLOCKS = 65536, /* the most that grow keeps */
    AHEAD = 32,          /* kernels that spin launches before the first of them is done */
    REPORT_MS = 100,
    CELL_NS = 50000000, /* of one kernel of a notebook */
    LINE_BYTES = 64,
};

static const char usage[] = "usage: tenant steady BYTES [SECONDS]\n"
                            "       tenant grow STEP [PAUSE_MS]\n"
                            "       tenant hold BYTES\n"
                            "       tenant spin MICROSECONDS\n"
                            "       tenant notebook BYTES\n"
                            "BYTES and STEP are such as 512MiB, 2GiB or 4194304\n";

static const char *name_of(CUresult result)
{
    const char *name = NULL;

    return cuGetErrorName(result, &name) == CUDA_SUCCESS ? name : "unknown";
}

static void check(const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("{\"event\": \"failed\", \"call\": \"%s\", \"result\": %d, \"name\": \"%s\"}\n", call,
           (int) result, name_of(result));
    exit(1);
}

static size_t parse_size(const char *text)
{
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    char *unit;
    unsigned long long number;

    errno = 0;
    number = strtoull(text, &unit, 10);
    for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++)
        if (text[0] >= '1' && text[0] <= '9' && errno == 0 && strcmp(unit, units[i].name) == 0 &&
            number <= UINT64_MAX >> units[i].shift)
            return (size_t) number << units[i].shift;
    fprintf(stderr, "tenant: %s is not a size above zero\n%s", text, usage);
    exit(2);
}

static long parse_count(const char *text)
{
    char *end;
    long number = strtol(text, &end, 10);

    if (end != text && *end == '\0' && number >= 0 && number <= 1000000)
        return number;
    fprintf(stderr, "tenant: %s is not a whole number from 0 to 1000000\n%s", text, usage);
    exit(2);
}

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double) now.tv_sec + (double) now.tv_nsec * 1e-9;
}

/* Wait that long, -1: for ever. 1 if standard input has ended meanwhile. */
static int input_ends(int milliseconds)
{
    double until = seconds_now() + milliseconds * 1e-3;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char word[64];

    for (;;) {
        double left = until - seconds_now();
        int wait = milliseconds < 0 ? -1 : left > 0 ? (int) (left * 1e3) + 1 : 0;

        if (poll(&input, 1, wait) == 0)
            return 0;
        if (read(STDIN_FILENO, word, sizeof(word)) <= 0)
            return 1;
    }
}

static void start(const char *mode)
{
    CUdevice device;
    CUcontext context;
    char name[256] = "";
    size_t available;
    size_t total;

    check("cuInit", cuInit(0));
    check("cuDeviceGet", cuDeviceGet(&device, 0));
    check("cuDeviceGetName", cuDeviceGetName(name, sizeof(name), device));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    check("cuMemGetInfo", cuMemGetInfo(&available, &total));
    printf("{\"event\": \"start\", \"mode\": \"%s\", \"pid\": %d, \"device\": \"%s\", "
           "\"total\": %zu, \"free\": %zu}\n",
           mode, (int) getpid(), name, total, available);
}

static CUfunction load_kernel(CUmodule module, const char *name)
{
    CUfunction function;

    check("cuModuleGetFunction", cuModuleGetFunction(&function, module, name));
    return function;
}

static void launch(CUfunction kernel, void **arguments)
{
    check("cuLaunchKernel",
          cuLaunchKernel(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL));
}

static uint32_t bits_of(float number)
{
    uint32_t bits;

    memcpy(&bits, &number, sizeof(bits));
    return bits;
}

/* Copy *count* words back, and count those that are not *value*. */
static size_t count_wrong(CUdeviceptr from, size_t count, uint32_t value)
{
    static uint32_t words[CHUNK_WORDS];
    size_t wrong = 0;

    for (size_t done = 0; done < count; done += CHUNK_WORDS) {
        size_t length = count - done < CHUNK_WORDS ? count - done : CHUNK_WORDS;

        check("cuMemcpyDtoH", cuMemcpyDtoH(words, from + 4 * done, 4 * length));
        for (size_t i = 0; i < length; i++)
            wrong += words[i] != value;
    }
    return wrong;
}

/* Allocate, fill two thirds, add them into the third, copy all of it back, free. */
static size_t compute(CUfunction fill, CUfunction add, size_t bytes, unsigned round)
{
    uint64_t count = bytes / 12;
    uint32_t left = bits_of((float) round);
    uint32_t right = bits_of(0.5F);
    CUdeviceptr a, b, sum;
    size_t wrong;

    check("cuMemAlloc", cuMemAlloc(&a, bytes));
    b = a + 4 * count;
    sum = b + 4 * count;
    launch(fill, (void *[]) {&a, &left, &count});
    launch(fill, (void *[]) {&b, &right, &count});
    launch(add, (void *[]) {&sum, &a, &b, &count});
    wrong = count_wrong(a, count, left) + count_wrong(b, count, right) +
            count_wrong(sum, count, bits_of((float) round + 0.5F));
    check("cuMemFree", cuMemFree(a));
    return wrong;
}

/* seconds -1: until standard input ends. */
static int steady(size_t bytes, long seconds)
{
    double until = seconds_now() + (double) seconds;
    int ended = 0;
    size_t wrong = 0;
    CUmodule module;
    CUfunction fill, add;

    start("steady");
    check("cuModuleLoadData", cuModuleLoadData(&module, kernels));
    fill = load_kernel(module, "sim_fill");
    add = load_kernel(module, "sim_add");
    for (unsigned round = 1; !ended; round++) {
        size_t found = compute(fill, add, bytes, round);

        printf("{\"event\": \"round\", \"number\": %u, \"bytes\": %zu, \"wrong\": %zu}\n", round,
               bytes / 12 * 12, 4 * found);
        wrong += found;
        ended = seconds < 0 ? input_ends(PAUSE_MS) : seconds_now() >= until;
    }
    return wrong != 0;
}

static int grow(size_t step, int pause)
{
    static CUdeviceptr blocks[MOST_BLOCKS];
    size_t count = 0;
    int refused = 0;

    start("grow");
    while (count < MOST_BLOCKS && !input_ends(refused ? ASK_AGAIN_MS : pause)) {
        CUresult result = cuMemAlloc(&blocks[count], step);
        size_t available;
        size_t total;

        if (result == CUDA_SUCCESS) {
            printf("{\"event\": \"grown\", \"bytes\": %zu}\n", ++count * step);
            continue;
        }
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            check("cuMemAlloc", result);
        refused = 1;
        check("cuMemGetInfo", cuMemGetInfo(&available, &total));
        printf("{\"event\": \"refused\", \"bytes\": %zu, \"asked\": %zu, \"free\": %zu, "
               "\"result\": %d, \"name\": \"%s\"}\n",
               count * step, step, available, (int) result, name_of(result));
    }
    while (count > 0)
        check("cuMemFree", cuMemFree(blocks[--count]));
    return 0;
}

static int hold(size_t bytes)
{
    CUdeviceptr address;

    start("hold");
    check("cuMemAlloc", cuMemAlloc(&address, bytes));
    printf("{\"event\": \"held\", \"bytes\": %zu}\n", bytes);
    while (!input_ends(-1))
        ;
    check("cuMemFree", cuMemFree(address));
    return 0;
}

static void report_spun(uint64_t count, uint64_t length)
{
    printf("{\"event\": \"spun\", \"kernels\": %" PRIu64 ", \"ns\": %" PRIu64 ", \"at\": %.6f}\n",
           count, count * length, seconds_now());
}

/* Keep work in the stream at all times; report only finished kernels. */
static int spin(uint64_t length)
{
    CUevent done[AHEAD];
    CUmodule module;
    CUfunction kernel;
    uint64_t launched = 0;
    double next = 0;

    start("spin");
    check("cuModuleLoadData", cuModuleLoadData(&module, kernels));
    kernel = load_kernel(module, "sim_spin");
    for (int i = 0; i < AHEAD; i++)
        check("cuEventCreate",
              cuEventCreate(&done[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
    for (;; launched++) {
        CUevent event = done[launched % AHEAD];
        double now;

        if (launched >= AHEAD)
            check("cuEventSynchronize", cuEventSynchronize(event));
        launch(kernel, (void *[]) {&length});
        check("cuEventRecord", cuEventRecord(event, NULL));
        now = seconds_now();
        if (now < next)
            continue;
        next = now + REPORT_MS * 1e-3;
        report_spun(launched >= AHEAD ? launched - AHEAD + 1 : 0, length);
        if (input_ends(0))
            break;
    }
    return 0;
}

/* Work, check that every word is what the last cell left, and leave another. */
static size_t work(CUfunction spin_kernel, CUfunction fill, CUdeviceptr memory, size_t bytes,
                   uint32_t *value)
{
    uint64_t length = CELL_NS;
    uint64_t count = bytes / 4;
    size_t wrong;

    launch(spin_kernel, (void *[]) {&length});
    check("cuCtxSynchronize", cuCtxSynchronize());
    wrong = count_wrong(memory, count, *value);
    (*value)++;
    launch(fill, (void *[]) {&memory, value, &count});
    check("cuCtxSynchronize", cuCtxSynchronize());
    return wrong;
}

static int notebook(size_t bytes)
{
    char line[LINE_BYTES];
    uint64_t count = bytes / 4;
    uint32_t value = 1;
    size_t wrong = 0;
    CUmodule module;
    CUfunction fill, spin_kernel;
    CUdeviceptr memory;

    start("notebook");
    check("cuModuleLoadData", cuModuleLoadData(&module, kernels));
    fill = load_kernel(module, "sim_fill");
    spin_kernel = load_kernel(module, "sim_spin");
    check("cuMemAlloc", cuMemAlloc(&memory, bytes));
    launch(fill, (void *[]) {&memory, &value, &count});
    check("cuCtxSynchronize", cuCtxSynchronize());
    printf("{\"event\": \"held\", \"bytes\": %zu}\n", bytes);
    while (fgets(line, sizeof(line), stdin)) {
        double until;
        size_t found = 0;

        line[strcspn(line, "\n")] = '\0';
        until = seconds_now() + (double) parse_count(line) * 1e-3;
        do
            found += work(spin_kernel, fill, memory, bytes, &value);
        while (seconds_now() < until);
        printf("{\"event\": \"cell\", \"bytes\": %zu, \"wrong\": %zu}\n", bytes / 4 * 4, 4 * found);
        wrong += found;
    }
    check("cuMemFree", cuMemFree(memory));
    return wrong != 0;
}

int main(int count, char **words)
{
    const char *mode = count > 1 ? words[1] : "";

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(mode, "steady") == 0 && (count == 3 || count == 4))
        return steady(parse_size(words[2]), count == 4 ? parse_count(words[3]) : -1);
    if (strcmp(mode, "grow") == 0 && (count == 3 || count == 4))
        return grow(parse_size(words[2]), count == 4 ? (int) parse_count(words[3]) : 0);
    if (strcmp(mode, "hold") == 0 && count == 3)
        return hold(parse_size(words[2]));
    if (strcmp(mode, "spin") == 0 && count == 3)
        return spin((uint64_t) parse_count(words[2]) * 1000);
    if (strcmp(mode, "notebook") == 0 && count == 3)
        return notebook(parse_size(words[2]));
    fputs(usage, stderr);
    return 2;
}
