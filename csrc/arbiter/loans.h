/* SPDX-License-Identifier: Apache-2.0 */
/* loans.h -- how much device time elastic containers may use beyond their share, out of the shares
 * that others leave unused.
 *
 * Pure; times are CLOCK_MONOTONIC, ns.
 */
#ifndef PYVGPU_ARBITER_LOANS_H
#define PYVGPU_ARBITER_LOANS_H

#include "arbiter/lending.h"

#define LOANS_IDLE_NS UINT64_C(10000000)  /* time without work after which a share can be lent */
#define LOANS_WANT_NS UINT64_C(100000000) /* for so long a container that waited wants more */

/* Whether *then* is less than *period* ago; 0: never. */
static inline int loans_is_recent(uint64_t then, uint64_t now, uint64_t period)
{
    return then && now - then < period;
}

/* Lend unused time, to containers of the highest priority first. Returns the most that any is
 * lent. */
uint32_t loans_make(struct lending_container *const *tenants, unsigned count, uint64_t now);

#endif
