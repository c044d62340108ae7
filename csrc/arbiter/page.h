/* SPDX-License-Identifier: Apache-2.0 */
/* page.h -- a clock file, as the one process sees it that writes it. */
#ifndef PYVGPU_ARBITER_PAGE_H
#define PYVGPU_ARBITER_PAGE_H

#include "arbiter/fluid.h"
#include "region.h"

/* Make the file *name* in the open *folder*, whole from the moment on at which it has that name;
 * NULL with errno set, such as when the disk is full. */
struct clock_file *page_make(int folder, const char *name, const uint8_t id[16]);

/* The same in a file that is open; for one whose lock is held, and which so must stay that one. */
struct clock_file *page_fill(int fd, const uint8_t id[16]);

/* Show the tenant's clock; without one it is only a beat. Whoever dies in here leaves a sequence
 * that is odd, and so nothing to believe. */
void page_write(struct clock_file *page, const struct fluid *fluid,
                const struct fluid_tenant *tenant);

/* What has work beside a container of low priority: CLOCK_ABOVE_*, or 0. At any time. */
void page_write_above(struct clock_file *page, uint32_t above);

void page_remove(struct clock_file *page, int folder, const char *name);

#endif
