/* SPDX-License-Identifier: Apache-2.0 */
/* tails.h -- sets of nodes of a graph; what comes next depends on all of them. */
#ifndef PYVGPU_SIMULATOR_CUDA_TAILS_H
#define PYVGPU_SIMULATOR_CUDA_TAILS_H

#include "cuda/graph.h"

struct tails {
    CUgraphNode *nodes; /* to be freed */
    size_t count;
};

/* Let them be these; let them be more. False without memory. */
bool tails_set(struct tails *tails, const CUgraphNode *nodes, size_t count);
bool tails_join(struct tails *tails, const struct tails *more);

/* Does each of the others come before one of these, or is among them? */
bool tails_cover(const struct tails *tails, const struct tails *others);

#endif
