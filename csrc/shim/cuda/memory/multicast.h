/* SPDX-License-Identifier: Apache-2.0 */
/* multicast.h -- memory bound to multicast objects, which keep it alive. */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_MULTICAST_H
#define PYVGPU_SHIM_CUDA_MEMORY_MULTICAST_H

void multicast_after_fork(void);

#endif
