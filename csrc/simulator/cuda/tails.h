/* SPDX-License-Identifier: Apache-2.0 */
/* tails.h -- sets of graph nodes on which a stream's next captured node depends. */
#ifndef PYVGPU_SIMULATOR_CUDA_TAILS_H
#define PYVGPU_SIMULATOR_CUDA_TAILS_H

#include "cuda/graph.h"

struct tails {
    CUgraphNode *nodes; /* to be freed */
    size_t count;
};

/* Replace the set; add to it. False without memory. */
bool tails_set(struct tails *tails, const CUgraphNode *nodes, size_t count);
bool tails_join(struct tails *tails, const struct tails *more);

/* Is each of the others among these nodes, or before one of them? */
bool tails_cover(const struct tails *tails, const struct tails *others);

#endif
