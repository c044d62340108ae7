/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h -- what copies and sets cost: by their kind and size. */
#ifndef PYVGPU_CUDA_TRANSFER_H
#define PYVGPU_CUDA_TRANSFER_H

#include "cuda/pace.h"
#include "driver.h"

enum transfer {
    TRANSFER_ANYWHERE = 1, /* the driver finds out by the addresses */
    TRANSFER_TO_DEVICE,
    TRANSFER_TO_HOST,
    TRANSFER_WITHIN, /* a device */
    TRANSFER_TO_PEER,
    TRANSFER_MOVED, /* managed memory */
    TRANSFER_DECOMPRESSED,
    TRANSFER_FILLED,
};

/* Of a longer list as many speak for the rest. */
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

/* Before one was measured: some microseconds, and 64 bytes in a nanosecond. What is too large to be
 * true is for the driver to refuse. */
static inline int64_t transfer_guess(uint64_t bytes)
{
    return 4000 + (int64_t) (bytes < (UINT64_C(1) << 30) ? bytes : UINT64_C(1) << 30) / 64;
}

/* Pay for it. One copy of its code for all hooks: there are a hundred. */
CUresult transfer_begin(struct pace_work *work, enum transfer kind, uint64_t bytes,
                        struct stream stream);

#endif
