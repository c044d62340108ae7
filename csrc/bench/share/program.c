/* SPDX-License-Identifier: Apache-2.0 */
/* program.c -- common code of all workload kinds; see program.h. */
#include "program.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define POLL_NS  MILLISECOND_NS
#define GRACE_NS (10 * SECOND_NS) /* most time for work queued in a stream */

enum { FIGURES = 32, PRIORITIES = 16 };

/* The simulated driver knows the kernel by its name; real hardware takes about as long. */
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

struct program program;

static CUfunction functions[FUNCTIONS];
static CUcontext context;

static struct {
    const char *name;
    uint64_t value;
} figures[FIGURES];
static unsigned figure_count;

void program_check(const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "work: %s gave %d\n", call, (int) result);
    _exit(1);
}

void program_start(void)
{
    CUdevice device;
    CUmodule module;

    program_check("cuInit", cuInit(0));
    program_check("cuDeviceGet", cuDeviceGet(&device, 0));
    program_check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    program_check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    for (unsigned i = 0; i < FUNCTIONS; i++) {
        program_check("cuModuleLoadData", cuModuleLoadData(&module, image));
        program_check("cuModuleGetFunction",
                      cuModuleGetFunction(&functions[i], module, "sim_spin"));
    }
}

CUfunction program_function(unsigned copy)
{
    return functions[copy];
}

/* SHARE_PRIORITIES has the priorities of a program's streams in turn, such as "0 -3 -5". */
static int next_priority(void)
{
    static int priorities[PRIORITIES];
    static unsigned count, next;
    const char *text = getenv("SHARE_PRIORITIES");
    unsigned number;

    if (!__atomic_load_n(&count, __ATOMIC_ACQUIRE)) { /* first by the main thread */
        unsigned found = 0;
        char *end;

        for (const char *at = text ? text : "0"; found < PRIORITIES; at = end) {
            long value = strtol(at, &end, 10);

            if (end == at)
                break;
            priorities[found++] = (int) value;
        }
        __atomic_store_n(&count, found ? found : 1, __ATOMIC_RELEASE);
    }
    number = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    return priorities[number % count];
}

CUstream program_stream(void)
{
    CUstream stream;

    program_check("cuStreamCreateWithPriority",
                  cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, next_priority()));
    return stream;
}

uint64_t program_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * SECOND_NS + (uint64_t) now.tv_nsec;
}

void program_sleep_until(uint64_t then)
{
    struct timespec moment = {(time_t) (then / SECOND_NS), (long) (then % SECOND_NS)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL))
        continue;
}

bool program_goes_on(void)
{
    return program_now() < program.until_ns;
}

void program_tell(const char *name, uint64_t value)
{
    if (figure_count == FIGURES) {
        fprintf(stderr, "work: no room to tell %s\n", name);
        _exit(1);
    }
    figures[figure_count].name = name;
    figures[figure_count++].value = value;
}

void program_print(void)
{
    for (unsigned i = 0; i < figure_count; i++)
        printf("%s\"%s\": %" PRIu64, i ? ", " : "{", figures[i].name, figures[i].value);
    puts(figure_count ? "}" : "{}");
    fflush(stdout);
}

static uint64_t read_number(const uint64_t *number)
{
    return __atomic_load_n(number, __ATOMIC_RELAXED);
}

static void write_number(uint64_t *number, uint64_t value)
{
    __atomic_store_n(number, value, __ATOMIC_RELAXED);
}

void program_begin_caller(struct caller *caller)
{
    *caller = (struct caller) {.began_ns = program_now()};
    program_check("cuCtxSetCurrent", cuCtxSetCurrent(context));
}

void program_launch_caller(struct caller *caller, const struct shape *shape, uint64_t ns,
                           CUstream stream)
{
    void *arguments[] = {&ns};
    uint64_t began = program_now();
    uint64_t took;

    write_number(&caller->call_ns, began);
    program_check("cuLaunchKernel",
                  cuLaunchKernel(shape->function, shape->blocks, 1, 1, shape->threads, 1, 1,
                                 shape->shared, stream, arguments, NULL));
    took = program_now() - began;
    write_number(&caller->call_ns, 0);
    if (took > caller->longest_ns)
        write_number(&caller->longest_ns, took);
    write_number(&caller->launches, caller->launches + 1);
}

void program_end_caller(struct caller *caller)
{
    write_number(&caller->ended_ns, program_now());
}

static uint64_t longest_of(const struct caller *caller, uint64_t now)
{
    uint64_t since = read_number(&caller->call_ns);
    uint64_t longest = read_number(&caller->longest_ns);

    return since && now > since + longest ? now - since : longest;
}

void program_tell_caller(const struct caller *caller, const struct caller *others, unsigned count)
{
    uint64_t now = program_now();
    uint64_t ended = read_number(&caller->ended_ns);
    uint64_t longest = longest_of(caller, now);

    for (unsigned i = 0; i < count; i++)
        if (longest_of(&others[i], now) > longest)
            longest = longest_of(&others[i], now);
    program_tell("launches", read_number(&caller->launches));
    program_tell("elapsed_ns", (ended ? ended : now) - caller->began_ns);
    program_tell("longest_ns", longest);
}

struct watched {
    void *(*body)(void *);
    uint32_t returned;
};

static void *run_body(void *argument)
{
    struct watched *watched = argument;

    watched->body(NULL);
    __atomic_store_n(&watched->returned, 1, __ATOMIC_RELEASE);
    return NULL;
}

void program_watch(void *(*body)(void *) )
{
    static struct watched watched;
    pthread_t thread;

    watched.body = body;
    if (pthread_create(&thread, NULL, run_body, &watched)) {
        fputs("work: no thread\n", stderr);
        _exit(1);
    }
    while (!__atomic_load_n(&watched.returned, __ATOMIC_ACQUIRE) &&
           program_now() < program.until_ns + GRACE_NS)
        program_sleep_until(program_now() + POLL_NS);
    program_tell("returned", __atomic_load_n(&watched.returned, __ATOMIC_ACQUIRE));
}
