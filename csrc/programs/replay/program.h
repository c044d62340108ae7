/* SPDX-License-Identifier: Apache-2.0 */
/* program.h -- file format of a recorded program: its calls by thread (pyvgpu/replay/program.py).
 *
 * A file is a header, then the tables in the order of their counts in the header. All numbers have
 * the byte order of the machine that plays.
 */
#ifndef PYVGPU_PROGRAMS_REPLAY_PROGRAM_H
#define PYVGPU_PROGRAMS_REPLAY_PROGRAM_H

#include <stdint.h>

#define PROGRAM_MAGIC UINT64_C(0x003179616c706572) /* "replay1" */
#define PROGRAM_NONE  UINT32_MAX

enum program_kind {
    PROGRAM_LAUNCH,
    PROGRAM_GRAPH,
    PROGRAM_COPY_IN,  /* host to device; one that blocks waits for its stream */
    PROGRAM_COPY_OUT, /* device to host */
    PROGRAM_COPY_ON,  /* device to device */
    PROGRAM_FILL,
    PROGRAM_STREAM_SYNC,
    PROGRAM_DEVICE_SYNC,
    PROGRAM_EVENT_SYNC,
    PROGRAM_EVENT_RECORD,
    PROGRAM_EVENT_WAIT,
    PROGRAM_EVENT_QUERY,
    PROGRAM_ALLOCATE,
    PROGRAM_ALLOCATE_HOST,
    PROGRAM_FREE,
    PROGRAM_KINDS,
};

/* Flags of a call. */
enum { PROGRAM_BLOCKS = 1, PROGRAM_GAP_OF_FIRST = 2 /* the gap begins when after[0] is done */ };

struct program_header {
    uint64_t magic;
    uint32_t threads, calls, streams, kernels, events, graphs, nodes;
    uint32_t records; /* in the trace: greater than every call's order */
};

struct program_range {
    uint32_t first, count;
};

struct program_kernel {
    uint32_t shared_bytes; /* the most that a launch asks for */
};

struct program_shape {
    uint32_t kernel;
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_bytes;
};

struct program_node {
    uint64_t ns;
    struct program_shape shape;
    uint32_t after[2]; /* nodes of the same graph, by their index in it */
};

/* That number of calls of that thread must be done first. */
struct program_after {
    uint32_t thread; /* PROGRAM_NONE: nothing */
    uint32_t calls;
};

struct program_call {
    uint64_t gap_ns; /* for which the thread computes after its last call */
    uint64_t ns;     /* device time of the work */
    struct program_shape shape;
    struct program_after after[2];
    uint32_t kind;
    uint32_t flags;
    uint32_t stream; /* 0 is the default stream */
    uint32_t what;   /* the event or the graph */
    uint32_t order;  /* the call's index in the whole trace */
    uint32_t unused;
};

struct program {
    const struct program_header *header;
    const struct program_range *threads; /* their calls */
    const struct program_range *graphs;  /* their nodes */
    const struct program_call *calls;
    const struct program_node *nodes;
    const struct program_kernel *kernels;
};

/* Map the file. 0, or -1 and a line on standard error. */
int program_open(struct program *program, const char *path);

#endif
