/* SPDX-License-Identifier: Apache-2.0 */
/* carrier.h -- descriptors that carry exported memory: whether one is still open anywhere.
 *
 * A descriptor keeps its memory wherever it goes: in its process, in copies, in a socket, in a
 * process that never heard of CUDA. Nobody tells of its end but the kernel: a read lock on one byte
 * of its file belongs to what was opened, and goes when the last copy of it is closed. The byte is
 * that of the export's link, far beyond whatever a file has.
 *
 * Who asks must open that file once more, and knows it only if a descriptor came by. Knows no CUDA.
 */
#ifndef PYVGPU_CARRIER_H
#define PYVGPU_CARRIER_H

#include "region.h"

enum carrier { CARRIER_CLOSED, CARRIER_OPEN, CARRIER_UNKNOWN };

/* Have *descriptor* carry the export at *place* of the table: 1 if its end can be told. */
int carrier_mark(const struct region *region, int descriptor, unsigned place);

/* A descriptor came from elsewhere; of this container's it tells where the others are. */
void carrier_learn(const struct region *region, int descriptor);

enum carrier carrier_look(const struct region *region, unsigned place);

#endif
