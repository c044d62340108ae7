/* SPDX-License-Identifier: Apache-2.0 */
/* charge.h -- one allocation on its way: charged, then settled under its address or refunded. */
#ifndef PYVGPU_CUDA_CHARGE_H
#define PYVGPU_CUDA_CHARGE_H

#include "allocations.h"
#include "cuda/context.h"

struct charge {
    CUcontext handle;
    struct context *context; /* NULL: not seen before, its reserve is charged too */
    uint32_t life;           /* of that context */
    unsigned device;
    uint64_t bytes; /* of the allocation alone */
    uint64_t small; /* of one in a block (blocks.h), which is what is charged; else 0 */
    uint16_t link;  /* without bytes: another process pays (share.h) */
};

/* The one map from the ledger's 0 or -errno to what CUDA says. */
CUresult refusal(int ledger_result);

/* The unit of charge: 2 MiB for requests of 1 MiB and more, 512 bytes for smaller ones. */
uint64_t charge_size(uint64_t bytes);

/* Charge *bytes* to *device* if they fit, with what others had open of this process's freed memory
 * and have closed: 0, or -ENOMEM as the ledger. */
int charge_try(unsigned device, uint64_t bytes);

/* Note that a request is refused; that is what to answer. */
CUresult charge_refused(unsigned device, uint64_t bytes);

/* Charge *bytes* to *device*; before that is refused, the pools give back what they do not use. */
CUresult charge_device(unsigned device, uint64_t bytes);

/* Find the current context and its device, for a charge of *bytes*, rounded; nothing is charged. */
CUresult charge_find_current(struct charge *charge, uint64_t bytes);

/* Charge what was found; nothing at all, if there are no bytes and the context is known. */
CUresult charge_found(const struct charge *charge);

/* Both: charge *bytes*, rounded, to the device of the current context. */
CUresult charge_current(struct charge *charge, uint64_t bytes);

/* The same for linear memory, of which blocks are charged. */
CUresult charge_linear(struct charge *charge, uint64_t bytes);

/* Bring a charge for linear memory to *bytes* once the driver has said what the allocation really
 * takes. */
CUresult charge_adjust(struct charge *charge, uint64_t bytes);

/* The context that a charge was made in holds something now: its record, with which a reserve that
 * was charged for it stays. NULL without memory. */
struct context *charge_settle_context(struct charge *charge);

/* The driver allocated, and *address* names it. On failure the caller frees, and then refunds. */
CUresult charge_settle(struct charge *charge, enum allocation_kind kind, uint64_t address);

/* The driver did not allocate, or has freed again. */
void charge_refund(const struct charge *charge);

/* The driver has freed *allocation*, which was taken out of the table. What others have open of it
 * stays charged. Of memory that another process pays for the import ends. */
void charge_release(const struct allocation *allocation);

/* The driver says that *owner* is gone, and everything that it held. */
void charge_release_owned(const void *owner);

/* Put an allocation into the table; its owner is a context, or NULL: 0 or -ENOMEM. */
int charge_enter(const struct allocation *allocation);

/* The driver would not free it: it goes back into the table. */
void charge_restore(const struct allocation *allocation);

/* The driver has answered whether it freed *allocation*: one of the two. */
static inline void charge_freed(const struct allocation *allocation, CUresult result)
{
    if (likely(result == CUDA_SUCCESS))
        charge_release(allocation);
    else
        charge_restore(allocation);
}

#endif
