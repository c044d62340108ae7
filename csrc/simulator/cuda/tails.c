/* SPDX-License-Identifier: Apache-2.0 */
/* tails.c -- the last nodes of a capturing stream; see tails.h. */
#include "cuda/tails.h"

#include <stdlib.h>
#include <string.h>

bool tails_set(struct tails *tails, const CUgraphNode *nodes, size_t count)
{
    CUgraphNode *copy = malloc((count + 1) * sizeof(CUgraphNode));

    if (!copy)
        return false;
    if (count)
        memcpy(copy, nodes, count * sizeof(CUgraphNode));
    free(tails->nodes);
    *tails = (struct tails) {copy, count};
    return true;
}

bool tails_join(struct tails *tails, const struct tails *more)
{
    CUgraphNode *grown =
        realloc(tails->nodes, (tails->count + more->count + 1) * sizeof(CUgraphNode));

    if (!grown)
        return false;
    tails->nodes = grown;
    for (size_t i = 0; i < more->count; i++) {
        bool there = false;
        for (size_t j = 0; j < tails->count; j++)
            there |= tails->nodes[j] == more->nodes[i];
        if (!there)
            tails->nodes[tails->count++] = more->nodes[i];
    }
    return true;
}

static bool comes_before(const struct node *first, const struct node *second)
{
    if (first == second)
        return true;
    for (size_t i = 0; i < second->before_count; i++)
        if (comes_before(first, second->before[i]))
            return true;
    return false;
}

bool tails_cover(const struct tails *tails, const struct tails *others)
{
    for (size_t i = 0; i < others->count; i++) {
        bool found = false;
        for (size_t j = 0; j < tails->count; j++)
            found |=
                comes_before(graph_find_node(others->nodes[i]), graph_find_node(tails->nodes[j]));
        if (!found)
            return false;
    }
    return true;
}
