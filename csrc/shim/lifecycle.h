/* SPDX-License-Identifier: Apache-2.0 */
/* lifecycle.h -- calls the modules of lifecycle.def, which need not know each other. */
#ifndef PYVGPU_SHIM_LIFECYCLE_H
#define PYVGPU_SHIM_LIFECYCLE_H

struct context;
struct quota_limits;

/* The limits were read, or have changed. */
void lifecycle_take_limits(const struct quota_limits *limits);

/* cuInit has succeeded, and this process has a slot. */
void lifecycle_open(void);

/* In a forked child. */
void lifecycle_after_fork(void);

/* The driver has destroyed the context. */
void lifecycle_context_ended(const struct context *context);

/* A charge exceeds the quota on the device: give up what is charged and not in use. Nonzero if the
 * charge is worth another try. */
int lifecycle_make_room(unsigned device);

#endif
