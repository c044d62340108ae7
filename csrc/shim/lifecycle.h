/* SPDX-License-Identifier: Apache-2.0 */
/* lifecycle.h -- calls the modules of lifecycle.def, which need not know each other. */
#ifndef PYVGPU_SHIM_LIFECYCLE_H
#define PYVGPU_SHIM_LIFECYCLE_H

struct context;

/* In a forked child. */
void lifecycle_after_fork(void);

/* The driver has destroyed the context. */
void lifecycle_context_ended(const struct context *context);

#endif
