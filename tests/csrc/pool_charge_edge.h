/* SPDX-License-Identifier: Apache-2.0 */
/* pool_charge_edge.h -- stubs of the shim's modules around pool_charge.c: a ledger with a quota,
 * without the watch for new limits, and a driver without captures. Include it in one file of a
 * program.
 */
#ifndef PYVGPU_TESTS_GROWTH_EDGE_H
#define PYVGPU_TESTS_GROWTH_EDGE_H

#include "shim/cuda/memory/charge.h"
#include "scratch_region.h"

#define MIB   (UINT64_C(1) << 20)
#define QUOTA (256 * MIB)

struct shim shim;
struct driver driver;
int captures;

int charge_try(unsigned device, uint64_t bytes)
{
    return ledger_charge(&shim.ledger, device, bytes);
}

CUresult charge_refused(unsigned device, uint64_t bytes)
{
    (void) device;
    (void) bytes;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult edge_exchange_mode(CUstreamCaptureMode *mode)
{
    (void) mode;
    return CUDA_SUCCESS;
}

static inline uint64_t charged(void)
{
    return ledger_used(&shim.ledger, 0);
}

static inline struct scratch edge_open(void)
{
    struct scratch scratch = scratch_make(0);
    struct region_reason reason;

    if (scratch_open(&scratch, &shim.region, &reason) || slots_claim(&shim.region, 0, &reason))
        exit(2);
    shim.ledger.region = &shim.region;
    shim.ledger.limit[0] = QUOTA;
    shim.ledger.generation = region_generation(shim.region.quota);
    shim.open = 1;
    driver.cuThreadExchangeStreamCaptureMode = edge_exchange_mode;
    return scratch;
}

#endif
