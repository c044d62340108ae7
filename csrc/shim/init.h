/* SPDX-License-Identifier: Apache-2.0 */
/* init.h -- initialisation of CUDA in this process. */
#ifndef PYVGPU_SHIM_INIT_H
#define PYVGPU_SHIM_INIT_H

void init_after_fork(void);

#endif
