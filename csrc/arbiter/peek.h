/* SPDX-License-Identifier: Apache-2.0 */
/* peek.h -- SIGBUS-safe reads of mapped files that other users own.
 *
 * The arbiter reads each file a hundred times a second. It maps them, since a system call for each
 * read would be most of its cost. Their owner may truncate them at any time: reading behind a
 * file's end raises SIGBUS, and then only that read fails, like a short read(). Data is copied
 * before it is checked, so nothing that was checked can change afterwards.
 *
 * For a single reading thread, in a program that has no other use for SIGBUS.
 */
#ifndef PYVGPU_ARBITER_PEEK_H
#define PYVGPU_ARBITER_PEEK_H

#include <stddef.h>
#include <stdint.h>

struct peek {
    const volatile uint64_t *words; /* NULL: nothing is mapped */
    size_t size;
};

/* Map the first *size* bytes of the open file *fd*; 0, with errno set, if that fails. */
int peek_open(struct peek *peek, int fd, size_t size);

/* Copy *size* bytes from *offset* on, both multiples of 8; 0 if the file has not that much. */
int peek_at(const struct peek *peek, void *into, size_t size, size_t offset);

void peek_close(struct peek *peek);

#endif
