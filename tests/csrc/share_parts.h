/* SPDX-License-Identifier: Apache-2.0 */
/* share_parts.h -- what the parts of share_world.c know of each other: driver, shim, program and
 * arbiter of one scene, and the state that all of them have. */
#ifndef PYVGPU_TESTS_SHARE_PARTS_H
#define PYVGPU_TESTS_SHARE_PARTS_H

#include "share_world.h"

#include <stdbool.h>

#include "arbiter/fluid.h"
#include "clock.h"
#include "costs.h"
#include "governor.h"
#include "simulator/model.h"

#define NEVER UINT64_MAX

enum { PROCESSES = 64, MARKS = 128, ROOM = 3 + WORLD_STREAMS, DRIVER_RING = 1024 };

struct mark { /* of everything before it, on all streams */
    uint64_t paid;
    uint64_t begun; /* what was paid at the mark before */
    uint64_t begin; /* ticket */
    uint64_t begin_ns;
    uint64_t given_ns;
    uint64_t ends[WORLD_STREAMS];
};

struct sample {
    uint64_t key, begin, end;
    uint64_t set_ns;
    struct costs_quote quote;
};

struct process {
    unsigned tenant, lane;
    uint32_t slot; /* among the processes of its container */
    struct governor governor;
    struct costs costs;
    struct usage_work work;
    struct clock_view clock;
    uint64_t looked_ns;
    uint64_t wake_ns; /* NEVER: it waits for a ticket */
    uint64_t awaited; /* the ticket; 0: none */
    uint64_t syncing; /* what was paid when it began to wait for all its work; 0: it does not */
    uint64_t waits_since;
    uint64_t launches;
    bool pending; /* a launch is worked out, and not yet paid */
    struct costs_quote quote;
    uint64_t settled_ns; /* governor's, at that quote */
    unsigned touched;    /* streams, since the last mark, a bit each */
    uint64_t begin;      /* of those, the first event */
    uint64_t begin_ns;
    uint64_t last_paid;
    uint64_t last_end_ns;
    uint64_t latest[WORLD_STREAMS]; /* tickets */
    struct mark marks[MARKS];
    unsigned mark_first, mark_count;
    struct sample samples[WORLD_SAMPLES];
    unsigned sample_first, sample_count;
    uint64_t last_sample_ns;       /* when the last one was done that was seen */
    uint64_t retired;              /* work that is done, and all before it */
    uint64_t retired_ticket;       /* of the last of it */
    uint64_t done_ns[DRIVER_RING]; /* by ticket */
};

struct world {
    const struct scene *scene;
    uint64_t now;
    uint32_t random;
    struct model_device device;
    struct model_lane lanes[PROCESSES];
    struct model model;
    struct process processes[PROCESSES];
    unsigned process_count, tenant_count;
    unsigned vcore[WORLD_TENANTS];
    struct usage_compute compute[WORLD_TENANTS];
    struct fluid fluid;
    struct fluid_lane fluid_lanes[PROCESSES];
    struct fluid_tenant fluid_tenants[WORLD_TENANTS];
    struct clock_file pages[WORLD_TENANTS];
    uint64_t tick_ns;
    uint64_t *work[WORLD_TENANTS];
    size_t steps;
};

extern struct world world;

/* ---- share_world.c */

/* Since the scene began. */
uint64_t world_passed(void);

uint32_t world_random(void);

/* By how much somebody wakes up late. */
uint64_t world_late(void);

static inline const struct tenant_plan *process_plan(const struct process *process)
{
    return &world.scene->tenants[process->tenant];
}

static inline void process_wait_for(struct process *process, uint64_t ticket)
{
    process->awaited = ticket;
    process->wake_ns = NEVER;
}

/* ---- share_driver.c: tickets, and when they were done */

bool driver_is_done(const struct process *process, uint64_t ticket);

/* See what is done. */
void driver_retire(struct process *process);

/* The ticket of the oldest work that is not retired. */
uint64_t driver_oldest(const struct process *process);

/* Put work into a stream, or an event if *length* is 0; return its ticket. */
uint64_t driver_enqueue(struct process *process, unsigned stream, uint64_t length, unsigned units);

bool driver_has_room(struct process *process);

/* When was it done? Tickets older than the ring were done long ago, and were looked at then. */
uint64_t driver_done_at(const struct process *process, uint64_t ticket);

/* ---- share_shim.c: marks and measurements, and what a launch pays */

void shim_look_at_clock(struct process *process);

/* True if any mark was passed. */
bool shim_look_at_marks(struct process *process);

/* True when the next launch, which has *key*, is paid; else the process waits. */
bool shim_pay(struct process *process, uint64_t key);

/* ---- share_program.c */

void program_run(struct process *process);

/* ---- share_arbiter.c */

void arbiter_tick(void);

#endif
