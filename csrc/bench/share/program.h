/* SPDX-License-Identifier: Apache-2.0 */
/* program.h -- what all kinds of programs of `work` have in common: the driver's calls, checked,
 * and the time that launch calls take.
 *
 * Plain cuda.h, linked to libcuda.so.1; nothing here knows pyvgpu.
 */
#ifndef PYVGPU_BENCH_PROGRAM_H
#define PYVGPU_BENCH_PROGRAM_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define MICROSECOND_NS UINT64_C(1000)
#define MILLISECOND_NS UINT64_C(1000000)
#define SECOND_NS      UINT64_C(1000000000)

enum {
    BLOCKS = 1024, /* more than any device has room for at once */
    THREADS = 1024,
    QUARTER_BLOCKS = 64, /* two on a processor: 32 of the 132 of an H100 */
    FUNCTIONS = 10,      /* copies of the kernel, each of another module */
    MORE = 3,
};

/* What the command line says, and the program's time. */
struct program {
    uint64_t length_ns;
    uint64_t more[MORE]; /* what else a kind takes; 0 if it is left out */
    uint64_t from_ns;
    uint64_t until_ns;
};

extern struct program program;

/* Have a context and FUNCTIONS kernels. */
void program_start(void);

/* The kernel's copy: it takes as many ns as its argument says. */
CUfunction program_function(unsigned copy);

/* End the program with a line on standard error unless the call succeeded. */
void program_check(const char *call, CUresult result);

CUstream program_stream(void);

uint64_t program_now(void);
void program_sleep_until(uint64_t then);
bool program_goes_on(void);

/* Add a number to the line that the program ends with. */
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
    uint64_t ended_ns; /* 0: it goes on */
    uint64_t call_ns;  /* since when a call has not returned; 0: none */
    uint64_t longest_ns;
};

void caller_begin(struct caller *caller);
void caller_launch(struct caller *caller, const struct shape *shape, uint64_t ns, CUstream stream);
void caller_end(struct caller *caller);

/* Tell "launches" and "elapsed_ns" of *caller*, by now if it has not ended, and the "longest_ns" of
 * it and the *others*. */
void caller_tell(const struct caller *caller, const struct caller *others, unsigned count);

/* Run *body* in a thread of its own and wait for it, but not for long after the program's end.
 * Tells "returned": whether the body did. */
void program_watch(void *(*body)(void *) );

#endif
