/* SPDX-License-Identifier: Apache-2.0 */
/* share_world.h -- containers that share a device, under a clock that nobody waits for.
 *
 * The device is the simulator's own model. Each process of a container launches as a program does,
 * pays as the shim does (governor, costs, clock), and puts the same events on its streams. The
 * arbiter is fluid.c. What is left out is the machine: wake-ups are late by as much as a scene
 * says, from a generator with a seed.
 */
#ifndef PYVGPU_TESTS_SHARE_WORLD_H
#define PYVGPU_TESTS_SHARE_WORLD_H

#include <stdint.h>

#define WORLD_US      UINT64_C(1000)
#define WORLD_MS      UINT64_C(1000000)
#define WORLD_S       UINT64_C(1000000000)
#define WORLD_TENANTS 9
#define WORLD_STREAMS 8
#define WORLD_SAMPLES 4096
#define WORLD_STEP    (10 * WORLD_MS) /* in which work is counted */
#define WORLD_UNITS   128             /* SMs */
#define WORLD_SLICE   WORLD_MS
#define WORLD_BOOT    (1000 * WORLD_S)

enum arbiter_mode { ARBITER_WORKS, ARBITER_ABSENT, ARBITER_FROZEN, ARBITER_LIES, ARBITER_LENDS };

/* What one container runs, and what it may have. Zeros are what is usual. */
struct tenant_plan {
    unsigned vcore; /* 0: no shim at all */
    unsigned limit; /* 0: hard */
    uint64_t length_ns;
    uint64_t other_ns;  /* every second launch, of another kernel */
    uint64_t later_ns;  /* the same kernel takes that long from change_ns on */
    uint64_t change_ns; /* since the beginning */
    uint64_t start_ns, stop_ns;
    uint64_t on_ns, off_ns; /* bursts */
    unsigned processes, streams;
    unsigned units;             /* SMs of a launch; 0: all */
    int fresh;                  /* each launch is of something new */
    int synchronous;            /* each launch is waited for */
    uint64_t halt_ns, go_on_ns; /* the first process is stopped in between */
    int lies;                   /* it publishes work without end, and launches none */
};

struct scene {
    struct tenant_plan tenants[WORLD_TENANTS];
    uint64_t late_ns; /* the most by which a wake-up is late */
    uint64_t duration_ns;
    enum arbiter_mode arbiter;
    uint64_t arbiter_change_ns;         /* until then it works */
    void (*script)(uint64_t passed_ns); /* every millisecond; for world_set() */
    uint32_t seed;
};

/* Run a scene to its end. */
void world_run(const struct scene *scene);

/* From now on; to be called by a script. */
void world_set(unsigned tenant, unsigned vcore);

/* GPU time that a tenant had between two times of the last run, in WORLD_STEPs. */
uint64_t world_work(unsigned tenant, uint64_t from_ns, uint64_t until_ns);

#endif
