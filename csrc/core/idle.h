/* SPDX-License-Identifier: Apache-2.0 */
/* idle.h -- publishes the times in which a process had no work on a device, for the arbiter.
 *
 * The two words of usage_file.idle are the process's last two times without work. The later one may
 * still go on.
 *
 * Pure, but for the words; times are CLOCK_MONOTONIC, ns. Any thread may call these.
 */
#ifndef PYVGPU_CORE_IDLE_H
#define PYVGPU_CORE_IDLE_H

#include "core/region.h"

/* Zeros but for *words*: the process has work. */
struct idle {
    uint64_t *words;   /* NULL: it publishes nothing */
    uint64_t since_ns; /* since when it has no work; 0: it has some */
    int published;     /* the last of the words says so, */
    unsigned at;       /* and its index is this */
};

/* Nothing was seen in flight just now, since *since_ns*. Publishes that when it is called the
 * second time: a thread may launch while another one polls. */
void idle_rest(struct idle *idle, uint64_t since_ns, uint64_t now);

/* Work is about to be given to the device. */
void idle_work(struct idle *idle, uint64_t now);

static inline int idle_rests(const struct idle *idle)
{
    return __atomic_load_n(&idle->since_ns, __ATOMIC_RELAXED) != 0;
}

#endif
