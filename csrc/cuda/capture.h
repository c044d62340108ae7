/* SPDX-License-Identifier: Apache-2.0 */
/* capture.h -- streams whose work is recorded into a graph instead of being done. */
#ifndef PYVGPU_CUDA_CAPTURE_H
#define PYVGPU_CUDA_CAPTURE_H

#include "compiler.h"
#include "cuda/stream.h"

extern int captures; /* that were begun in this process and have not ended */

/* Whether any stream may be capturing. One whose stream is destroyed meanwhile counts for good. */
static inline int captures_going_on(void)
{
    return unlikely(__atomic_load_n(&captures, __ATOMIC_SEQ_CST) != 0);
}

/* Whether what is put into *stream* is recorded, or will be refused because another captures. */
int capture_has(const struct stream *stream);

/* The stream, or those of the context (NULL: any), are about to end. */
void capture_end_stream(CUstream stream);
void capture_end_context(CUcontext context);

void capture_after_fork(void);

#endif
