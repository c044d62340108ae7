/* SPDX-License-Identifier: Apache-2.0 */
/* multicast.h -- memory bound to multicast objects, which keep it alive. */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_MULTICAST_H
#define PYVGPU_SHIM_CUDA_MEMORY_MULTICAST_H

struct physical;

/* This process has ended its last use of *object*. */
void multicast_end(struct physical *object);

void multicast_after_fork(void);

#endif
