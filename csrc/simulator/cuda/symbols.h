/* SPDX-License-Identifier: Apache-2.0 */
/* symbols.h -- the table that cuGetProcAddress searches; stubs.py writes it from the headers. */
#ifndef PYVGPU_SIMULATOR_CUDA_SYMBOLS_H
#define PYVGPU_SIMULATOR_CUDA_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>

struct symbol {
    const char *base;
    unsigned int since; /* first CUDA version whose programs mean this entry */
    bool per_thread;
    int (*entry)(void);
};

/* Sorted by base, entries without a stream of their own first, then by version. */
extern const struct symbol cuda_symbols[];
extern const size_t cuda_symbol_count;

#endif
