/* SPDX-License-Identifier: Apache-2.0 */
/* shapes.c -- workloads whose kernels differ in function, grid, block and shared memory, like those
 * of frameworks: only the shape differs, not the duration. */
#include "kinds.h"
#include "program.h"

#include <stddef.h>

enum {
    UNSEEN = 1000, /* pairs of function and grid in a round, each once */
    ROUNDS = 4,
    FEW = 8,
    GRIDS = 1000,
    BLOCK_STEP = 32,
    BLOCK_SIZES = 32,
    SHARED_STEP = 128,
};

static struct caller caller;
static CUstream stream;
static uint64_t few_ns, other_ns; /* duration of launches, with the wait for them */

/* Shape *number* of FUNCTIONS * GRIDS pairs, and of as many again for each block size. */
static struct shape make_shape(uint64_t number)
{
    uint64_t pair = number % (FUNCTIONS * GRIDS);
    unsigned variant = (unsigned) (number / (FUNCTIONS * GRIDS));

    return (struct shape) {
        .function = program_function((unsigned) (pair % FUNCTIONS)),
        .blocks = BLOCKS + (unsigned) (pair / FUNCTIONS),
        .threads = THREADS - BLOCK_STEP * (variant % BLOCK_SIZES),
        .shared = SHARED_STEP * variant,
    };
}

/* Launch *count* kernels of the shapes from *first* on, cycling if there are fewer shapes. */
static uint64_t time_launches(uint64_t count, uint64_t first, uint64_t shapes)
{
    uint64_t began = program_now();

    for (uint64_t i = 0; i < count && program_goes_on(); i++) {
        struct shape shape = make_shape(first + i % shapes);

        program_launch_caller(&caller, &shape, program.length_ns, stream);
    }
    program_check("cuStreamSynchronize", cuStreamSynchronize(stream));
    return program_now() - began;
}

static void begin(void)
{
    program_begin_caller(&caller);
    stream = program_stream();
    time_launches(program_goes_on() ? 20 * UNSEEN : 0, 0, 1); /* warm-up */
    program_begin_caller(&caller);
}

static void *run_unseen(void *unused)
{
    begin();
    for (uint64_t round = 0; round < ROUNDS; round++) {
        few_ns += time_launches(UNSEEN, 0, 1);
        other_ns += time_launches(UNSEEN, 1 + round * UNSEEN, UNSEEN);
    }
    program_end_caller(&caller);
    return unused;
}

static void tell(void)
{
    program_tell_caller(&caller, NULL, 0);
    program_tell("few_ns", few_ns);
    program_tell("other_ns", other_ns);
}

/* A known shape, and as many launches of shapes that are new. */
void shapes_unseen(void)
{
    program_watch(run_unseen);
    tell();
}

static void *run_cycle(void *unused)
{
    begin();
    time_launches(UINT64_MAX, 0, program.more[0]);
    program_end_caller(&caller);
    return unused;
}

/* Cycle through more[0] shapes. */
void shapes_cycle(void)
{
    program_watch(run_cycle);
    tell();
}

static void *run_many(void *unused)
{
    begin();
    few_ns = time_launches(program.more[0], 0, FEW);
    other_ns = time_launches(program.more[0], FEW, program.more[0]);
    program_end_caller(&caller);
    return unused;
}

/* more[0] launches of FEW shapes, then as many of a shape of its own each. */
void shapes_many(void)
{
    program_watch(run_many);
    tell();
}
