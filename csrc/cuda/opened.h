/* SPDX-License-Identifier: Apache-2.0 */
/* opened.h -- memory of other processes that this one has open, by address, and how often.
 *
 * The driver counts: who opens a handle again gets the address that it has, and it stays until it
 * was closed as often.
 */
#ifndef PYVGPU_CUDA_OPENED_H
#define PYVGPU_CUDA_OPENED_H

#include "cuda/charge.h"

/* The driver opened memory at the address of *allocation*, which has its link or its charge; if it
 * was open already, these are given back. 0 or -ENOMEM. */
int opened_add(const struct allocation *allocation);

/* The driver is about to close *address*: what is to be released then, which is nothing where it
 * was opened more often. 0 if it is not open. */
int opened_take(CUdeviceptr address, struct allocation *taken);

/* The context *owner* is gone, and what was opened in it. */
void opened_forget(const struct context *owner);

void opened_after_fork(void);

#endif
