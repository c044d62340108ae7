/* SPDX-License-Identifier: Apache-2.0 */
/* graph.h -- this process's executable graphs that have memory nodes. */
#ifndef PYVGPU_SHIM_CUDA_WORK_GRAPH_H
#define PYVGPU_SHIM_CUDA_WORK_GRAPH_H

void graph_after_fork(void);

#endif
