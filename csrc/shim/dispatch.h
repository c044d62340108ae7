/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.h -- maps a function pointer of the driver to our hook for it. */
#ifndef PYVGPU_SHIM_DISPATCH_H
#define PYVGPU_SHIM_DISPATCH_H

/* Build the table, once, after driver_load(). */
void dispatch_build(void);

/* The hook for a pointer that the driver returned, or the same pointer if there is none. */
void *dispatch_route(void *function);

#endif
