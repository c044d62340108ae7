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

/* Let others open *allocation* of the table: its link, or 0 if it must not be. */
uint16_t share_export(const struct allocation *allocation, uint64_t key);

/* The driver wrote to *shareable* by what others open *bytes* that are charged on *device*: their
 * link, which is new unless there is one already. 0: they must not. */
uint16_t share_offer(uint16_t link, unsigned device, uint64_t bytes, const void *shareable,
                     CUmemAllocationHandleType type);

/* The link of memory with *key* that this process is about to open, if another process of the
 * container pays for it; 0 if this one must. */
uint16_t share_import(uint64_t key);

/* What a program gives the driver to import, held so that nobody changes it meanwhile. */
struct shared {
    CUmemAllocationHandleType type; /* none: nothing is held */
    int descriptor;                 /* a copy */
    CUmemFabricHandle fabric;
};

/* Hold it; what the driver is to be given. */
void *share_hold(struct shared *shared, void *shareable, CUmemAllocationHandleType type);
void share_let_go(struct shared *shared);

/* Find what *shared* is, in *opened*: an export of the container has its link; or else its bytes
 * and its device, if its owner is about to give it up, so that this process must pay; or neither,
 * if it comes from elsewhere. */
void share_find(const struct shared *shared, struct allocation *opened);

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
