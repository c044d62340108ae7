/* SPDX-License-Identifier: Apache-2.0 */
/* lending_scene.h -- a device of the arbiter's model, containers on it, and the passing of time. */
#ifndef PYVGPU_TESTS_LENDING_SCENE_H
#define PYVGPU_TESTS_LENDING_SCENE_H

#include "arbiter/lending.h"
#include "core/clock.h"
#include "core/compiler.h"

#include <string.h>

#define START   UINT64_C(5000000000)
#define TICK_NS UINT64_C(5000000)
#define UNIT    UINT64_C(1024)
#define PERCENT (CLOCK_WHOLE / 100)
#define TENANTS 4
#define LANES   600

/* A device, and on it containers of one process each unless a test says otherwise. */
struct scene {
    struct lending lending;
    struct lending_container tenants[TENANTS];
    struct lending_container *order[TENANTS];
    struct lending_process lanes[TENANTS][LANES];
    struct usage_work work[TENANTS][LANES];
    unsigned count;
};

static struct scene scene;

static inline void set_scene(unsigned count)
{
    memset(&scene, 0, sizeof(scene));
    scene.count = count;
    lending_start(&scene.lending, START);
    for (unsigned i = 0; i < count; i++) {
        scene.tenants[i] = (struct lending_container) {
            .lanes = scene.lanes[i], .lane_count = 1, .own = 25 * PERCENT, .limit = 25 * PERCENT};
        scene.order[i] = &scene.tenants[i];
        lending_see(&scene.lanes[i][0], scene.work[i][0], NULL);
    }
}

static inline void give(unsigned tenant, uint64_t begun_ns)
{
    scene.work[tenant][0].begun += (uint32_t) (begun_ns / UNIT);
}

static inline void finish(unsigned tenant, uint64_t finished_ns)
{
    scene.work[tenant][0].finished += (uint32_t) (finished_ns / UNIT);
}

/* Advance by *time*; returns how far the first container's clock advanced. */
static inline uint64_t pass(uint64_t time)
{
    uint64_t before = scene.tenants[0].share_ns ? scene.tenants[0].share_ns : scene.lending.now_ns;

    for (unsigned i = 0; i < scene.count; i++) {
        for (unsigned lane = 0; lane < scene.tenants[i].lane_count; lane++)
            lending_see(&scene.lanes[i][lane], scene.work[i][lane], NULL);
    }
    lending_tick(&scene.lending, scene.order, scene.count, scene.lending.now_ns + time);
    return scene.tenants[0].share_ns - before;
}

#endif
