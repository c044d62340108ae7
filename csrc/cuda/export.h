/* SPDX-License-Identifier: Apache-2.0 */
/* export.h -- physical memory that came in by a descriptor or a fabric handle.
 *
 * Nobody says how much is in it before it is mapped. Until then all that the container has exported
 * stays charged; then it is found to be an export of the container, or this process pays for it.
 */
#ifndef PYVGPU_CUDA_EXPORT_H
#define PYVGPU_CUDA_EXPORT_H

#include "cuda/physical.h"

enum { IMPORTED_UNSIZED = 1, IMPORTED_SIZED };

/* *physical*, which was imported, is mapped with *bytes*: find out who pays for it. If that is this
 * process and it does not fit, nothing has changed. */
CUresult export_settle(struct physical *physical, uint64_t bytes);

/* Somebody has an export of the container, and when he lets it go cannot be told: so all exports
 * stay charged while this process lives. 0 if no place is left to write that. */
int export_keep_all(void);

#endif
