/* SPDX-License-Identifier: Apache-2.0 */
/* page.h -- writer side of a clock file. */
#ifndef PYVGPU_ARBITER_PAGE_H
#define PYVGPU_ARBITER_PAGE_H

#include "arbiter/lending.h"
#include "core/region.h"

/* Create the file *name* in the open *folder*, complete before it gets that name; NULL with errno
 * set if that fails, for example because the disk is full. */
struct clock_file *page_make(int folder, const char *name, const uint8_t id[16]);

/* The same in an open file: for one whose lock is held, and which therefore cannot be replaced. */
struct clock_file *page_fill(int fd, const uint8_t id[16]);

/* Publish the tenant's clock; without a tenant, only a beat. A writer that dies in here leaves an
 * odd sequence, so readers believe nothing of the file. */
void page_write(struct clock_file *page, const struct lending *lending,
                const struct lending_container *tenant);

/* Publish clock_file.above (CLOCK_ABOVE_* or 0), at any time. */
void page_write_above(struct clock_file *page, uint32_t above);

void page_remove(struct clock_file *page, int folder, const char *name);

#endif
