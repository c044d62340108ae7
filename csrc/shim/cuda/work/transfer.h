/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h -- costs of copies and memsets, by kind and size. */
#ifndef PYVGPU_SHIM_CUDA_WORK_TRANSFER_H
#define PYVGPU_SHIM_CUDA_WORK_TRANSFER_H

#include "shim/cuda/work/pace.h"
#include "shim/driver.h"

enum transfer {
    TRANSFER_ANYWHERE = 1, /* the addresses decide */
    TRANSFER_TO_DEVICE,
    TRANSFER_TO_HOST,
    TRANSFER_WITHIN, /* one device */
    TRANSFER_TO_PEER,
    TRANSFER_MOVED, /* managed memory */
    TRANSFER_DECOMPRESSED,
    TRANSFER_FILLED,
};

/* Entries read of a list; in a longer one they stand for the rest. */
enum { TRANSFER_LIST_READ = 256 };

static inline uint64_t transfer_list_bytes(const size_t *sizes, size_t count)
{
    uint64_t bytes = 0;

    for (size_t i = 0; sizes && i < count && i < TRANSFER_LIST_READ; i++)
        bytes += sizes[i];
    return count > TRANSFER_LIST_READ ? bytes / TRANSFER_LIST_READ * count : bytes;
}

/* Sizes that differ by less than a quarter cost the same. */
static inline uint64_t transfer_class(uint64_t bytes)
{
    unsigned octave = 63 - (unsigned) __builtin_clzll(bytes | 4);

    return 4 * octave + ((bytes | 4) >> (octave - 2) & 3);
}

/* The guess before one was measured: some microseconds, and 64 bytes per nanosecond. Capped at
 * 1 GiB: the driver refuses impossible sizes. */
static inline int64_t transfer_guess(uint64_t bytes)
{
    return 4000 + (int64_t) (bytes < (UINT64_C(1) << 30) ? bytes : UINT64_C(1) << 30) / 64;
}

/* Pay for a transfer. A function, not inline: a hundred hooks share its code. */
CUresult transfer_begin(struct pace_work *work, enum transfer kind, uint64_t bytes,
                        struct stream stream);

#endif
