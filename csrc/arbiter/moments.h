/* SPDX-License-Identifier: Apache-2.0 */
/* moments.h -- finds the times in which only one process had work on a device.
 *
 * Each process publishes the last two times in which it had none (usage_file.idle). Where all
 * others had none, a process was alone, and what it measured then includes no time slices of
 * others. A process that publishes nothing is taken to have work unless the model has seen none
 * (lending.h).
 *
 * Pure; all times are CLOCK_MONOTONIC, ns.
 */
#ifndef PYVGPU_ARBITER_MOMENTS_H
#define PYVGPU_ARBITER_MOMENTS_H

#include "arbiter/lending.h"

/* Record those times between *begin_ns* and *end_ns* in the containers of the processes, which were
 * read at *seen_ns* and again at *end_ns* or later. Times recorded before grow or stay. */
void moments_find(struct lending_container *const *tenants, unsigned count, uint64_t begin_ns,
                  uint64_t seen_ns, uint64_t end_ns);

struct moments_idle {
    uint64_t from_ns;
    uint64_t until_ns;
};

/* The time in a word of usage_file.idle, as read at *now*; until *now* if it has not ended. Empty
 * if the word is invalid. */
struct moments_idle moments_idle(uint64_t word, uint64_t now);

#endif
