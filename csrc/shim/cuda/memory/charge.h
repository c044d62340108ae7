/* SPDX-License-Identifier: Apache-2.0 */
/* charge.h -- charges an allocation, then settles it under its address or refunds it. */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_CHARGE_H
#define PYVGPU_SHIM_CUDA_MEMORY_CHARGE_H

#include "core/allocations.h"
#include "shim/cuda/context/context.h"

struct charge {
    CUcontext handle;
    struct context *context; /* NULL: not seen before, so its reserve is charged, too */
    uint32_t life;           /* of that context */
    unsigned device;
    uint64_t bytes; /* of the allocation alone */
    uint64_t small; /* size of one in a block (blocks.h), which is charged instead; else 0 */
    uint16_t link;  /* without bytes: another process pays (share.h) */
};

/* The only mapping from the ledger's 0 or -errno to a CUresult. */
CUresult charge_result(int ledger_result);

/* The unit of charge: 2 MiB for requests of 1 MiB and more, 512 bytes for smaller ones. */
uint64_t charge_size(uint64_t bytes);

/* Charge *bytes* to *device* if they fit, after refunding freed memory that others have closed by
 * now: 0, or -ENOMEM as from the ledger. */
int charge_try(unsigned device, uint64_t bytes);

/* Log a refused request, and return the error for the hook. */
CUresult charge_refused(unsigned device, uint64_t bytes);

/* Charge *bytes* to *device*; before a refusal, trim the pools' unused memory. */
CUresult charge_device(unsigned device, uint64_t bytes);

/* Find the current context and its device, for a charge of *bytes*, rounded; charges nothing. */
CUresult charge_find_current(struct charge *charge, uint64_t bytes);

/* Make the charge found; a no-op if it has no bytes and the context is known. */
CUresult charge_found(const struct charge *charge);

/* Both: charge *bytes*, rounded, to the device of the current context. */
CUresult charge_current(struct charge *charge, uint64_t bytes);

/* The same for linear memory, which is charged in blocks. */
CUresult charge_linear(struct charge *charge, uint64_t bytes);

/* Adjust a charge for linear memory to *bytes*, the size that the driver reported afterwards. */
CUresult charge_adjust(struct charge *charge, uint64_t bytes);

/* Find or create the record of the charge's context, which holds memory now; a reserve charged for
 * it stays with the record. NULL if there is no memory for it. */
struct context *charge_settle_context(struct charge *charge);

/* The driver allocated at *address*: enter it. On failure the caller frees, and then refunds. */
CUresult charge_settle(struct charge *charge, enum allocation_kind kind, uint64_t address);

/* The driver did not allocate, or has freed again. */
void charge_refund(const struct charge *charge);

/* Release everything that it held. */
void charge_context_ended(const struct context *context);

#endif
