/* SPDX-License-Identifier: Apache-2.0 */
/* carrier.h -- descriptors that carry exported memory: whether one is still open anywhere.
 *
 * A descriptor keeps its memory wherever it goes: in its process, in copies, in a socket, in a
 * process that never heard of CUDA. Nobody tells of its end but the kernel: a lock on a byte of its
 * file belongs to what was opened, and goes when the last copy of it is closed. The bytes lie far
 * beyond whatever a file has, and those of one export are known by its key.
 *
 * Another process asks after such a lock by opening the file once more. The descriptors of one
 * container are of a few files, the driver's; their paths stand in the usage file, one after the
 * other. A descriptor of one more file, or of one that no path leads to (a dma-buf), is not marked:
 * its export has no known end (links.h). Knows no CUDA.
 */
#ifndef PYVGPU_CARRIER_H
#define PYVGPU_CARRIER_H

#include "region.h"

#define CARRIER_FILES 4

/* Somebody asks: the files are opened for the first question, and closed at the end. */
struct carrier {
    struct usage_file *usage;
    int files[CARRIER_FILES]; /* -1: not open */
    int error;                /* errno of the program */
    int cancel;
};

void carrier_begin(struct carrier *carrier, struct usage_file *usage);
void carrier_end(struct carrier *carrier);

/* Have *descriptor* carry what *key* names, beside others that may: 0 if nobody could tell when it
 * is closed. */
int carrier_mark(struct carrier *carrier, int descriptor, uint64_t key);

/* Whether a descriptor that carries what *key* names is open; also if that cannot be asked. */
int carrier_is_open(struct carrier *carrier, uint64_t key);

/* Whether *descriptor* is one of them, or a copy of one. */
int carrier_is(struct carrier *carrier, int descriptor, uint64_t key);

#endif
