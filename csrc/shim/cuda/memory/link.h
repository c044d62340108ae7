/* SPDX-License-Identifier: Apache-2.0 */
/* link.h -- ends exports and imports of memory (share.h), and refunds what nothing has open. */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_LINK_H
#define PYVGPU_SHIM_CUDA_MEMORY_LINK_H

#include "core/allocations.h"

/* An allocation with a link is gone in this process; 1 if the caller has to refund its charge. */
int link_end(const struct allocation *allocation);

/* Refund memory on *device* that this process freed while others had it open, and that they have
 * closed by now; 0 if there is none. */
int link_collect(unsigned device);

/* The same on all devices, for a call that the program may repeat often. */
void link_collect_all(void);

#endif
