/* SPDX-License-Identifier: Apache-2.0 */
/* peek.h -- looks into files that belong to somebody else, a hundred times a second.
 *
 * They are mapped, since a system call for each look would be most of what an arbiter costs. Their
 * user may cut them off at any time: whoever reads behind a file's end is sent SIGBUS, and then the
 * look is the one thing that fails, as a read() that comes back short. What is looked at is copied,
 * so nothing that was checked can change afterwards.
 *
 * For a program of one thread, which leaves SIGBUS to this.
 */
#ifndef PYVGPU_ARBITER_PEEK_H
#define PYVGPU_ARBITER_PEEK_H

#include <stddef.h>
#include <stdint.h>

struct peek {
    const volatile uint64_t *words; /* NULL: nothing is mapped */
    size_t size;
};

/* Map the first *size* bytes of the open file *fd*: 0, with errno set, if that cannot be done. */
int peek_open(struct peek *peek, int fd, size_t size);

/* Copy *size* bytes from *offset* on, both multiples of 8: 0 if that much is not in the file. */
int peek_at(const struct peek *peek, void *into, size_t size, size_t offset);

void peek_close(struct peek *peek);

#endif
