/* SPDX-License-Identifier: Apache-2.0 */
/* graph.h -- the executable graphs of this process that have memory nodes. */
#ifndef PYVGPU_CUDA_GRAPH_H
#define PYVGPU_CUDA_GRAPH_H

void graph_after_fork(void);

#endif
