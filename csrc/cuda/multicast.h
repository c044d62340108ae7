/* SPDX-License-Identifier: Apache-2.0 */
/* multicast.h -- what is bound to a multicast object, and so kept by it. */
#ifndef PYVGPU_CUDA_MULTICAST_H
#define PYVGPU_CUDA_MULTICAST_H

struct physical;

/* The driver says that this process has no use of *object* any more. */
void multicast_end(struct physical *object);

void multicast_after_fork(void);

#endif
