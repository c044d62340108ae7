/* SPDX-License-Identifier: Apache-2.0 */
/* share.h -- where charges meet what processes share: see links.h.
 *
 * An allocation with a link is shared. If it has bytes, this process lets others open it, and they
 * stay charged until nobody has it open; if it has none, it was opened, and its owner pays.
 */
#ifndef PYVGPU_CUDA_SHARE_H
#define PYVGPU_CUDA_SHARE_H

#include "allocations.h"
#include "hooks.h"

/* The key of memory in a descriptor. */
uint64_t share_key(unsigned device, uint64_t bytes);

/* Let others open *bytes* that are charged on *device*: their link, or 0 if it must not be. */
uint16_t share_offer(uint64_t key, unsigned device, uint64_t bytes, unsigned flags);

/* The same for *allocation* of the table, once; 0 if it must not be. */
int share_export(const struct allocation *allocation, uint64_t key, unsigned flags);

/* The link of memory with *key* that this process is about to open, if another process of the
 * container pays for it; 0 if this one must. */
uint16_t share_import(uint64_t key);

/* The driver opened what lies at the address of *opened*: unless its owner pays, charge it, to its
 * own device or, where the driver does not name one, to the one that is written. */
CUresult share_pay(struct allocation *opened);

/* What an export wrote to *shareable* must not be had after all: OUT_OF_MEMORY. */
CUresult share_take_back(void *shareable, CUmemAllocationHandleType type);

/* An allocation with a link is gone here; 1 if its charge is to be refunded. */
int share_end(const struct allocation *allocation);

/* Give back what this process has freed on *device* while others had it open, and they no longer
 * have; 0 if that is nothing. */
int share_collect(unsigned device);

#endif
