/* SPDX-License-Identifier: Apache-2.0 */
/* program.h -- common code of all workload kinds: checked driver calls, and the duration of launch
 * calls.
 *
 * Plain cuda.h, linked to libcuda.so.1; nothing here knows pyvgpu.
 */
#ifndef PYVGPU_BENCH_SHARE_PROGRAM_H
#define PYVGPU_BENCH_SHARE_PROGRAM_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define MICROSECOND_NS UINT64_C(1000)
#define MILLISECOND_NS UINT64_C(1000000)
#define SECOND_NS      UINT64_C(1000000000)

enum {
    BLOCKS = 1024, /* more than any device can run at once */
    THREADS = 1024,
    QUARTER_BLOCKS = 64, /* two on an SM: 32 of the 132 SMs of an H100 */
    FUNCTIONS = 10,      /* copies of the kernel, each of another module */
    MORE = 3,
};

/* The command line's settings, and the program's time. */
struct program {
    uint64_t length_ns;
    uint64_t more[MORE]; /* further arguments of a kind; 0 if left out */
    uint64_t from_ns;
    uint64_t until_ns;
};

extern struct program program;

/* Create a context and FUNCTIONS kernels. */
void program_start(void);

/* A copy of the kernel, which runs for as many ns as its argument says. */
CUfunction program_function(unsigned copy);

/* End the program with a message on standard error unless the call succeeded. */
void program_check(const char *call, CUresult result);

CUstream program_stream(void);

uint64_t program_now(void);
void program_sleep_until(uint64_t then);
bool program_goes_on(void);

/* Add a number to the program's final line of JSON. */
void program_tell(const char *name, uint64_t value);
void program_print(void);

struct shape {
    CUfunction function;
    unsigned blocks;
    unsigned threads;
    unsigned shared; /* bytes */
};

/* One thread's launches, and the longest that one of its launch calls took. */
struct caller {
    uint64_t launches;
    uint64_t began_ns;
    uint64_t ended_ns; /* 0: still running */
    uint64_t call_ns;  /* start of a call that has not returned; 0: none */
    uint64_t longest_ns;
};

void program_begin_caller(struct caller *caller);
void program_launch_caller(struct caller *caller, const struct shape *shape, uint64_t ns,
                           CUstream stream);
void program_end_caller(struct caller *caller);

/* Report "launches" and "elapsed_ns" of *caller*, up to now if it has not ended, and the
 * "longest_ns" of it and the *others*. */
void program_tell_caller(const struct caller *caller, const struct caller *others, unsigned count);

/* Run *body* in a thread of its own and wait for it, but not long after the program's end. Reports
 * "returned": whether the body returned. */
void program_watch(void *(*body)(void *) );

#endif
