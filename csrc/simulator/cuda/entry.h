/* SPDX-License-Identifier: Apache-2.0 */
/* entry.h -- entry points of calls that take a stream, in their two forms.
 *
 * In the plain form NULL is the legacy default stream; in the form with _ptsz (asynchronous calls)
 * or _ptds (the others) it is the calling thread's own. Both have the same parameters and one body.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_ENTRY_H
#define PYVGPU_SIMULATOR_CUDA_ENTRY_H

#include "queue.h"

/* Ready, the calling thread's context in order, and its stream found. */
CUresult stream_enter(const char *name, struct process_call *call, CUstream handle, bool per_thread,
                      struct stream **stream);

/* A further stream of a call that has begun. */
CUresult stream_enter_again(CUstream handle, bool per_thread, struct stream **stream);

#define ENTER_STREAM(handle, per_thread, stream)                                           \
    PROCESS_CALL(this_call);                                                               \
    do {                                                                                   \
        CUresult entered = stream_enter(__func__, &this_call, handle, per_thread, stream); \
        if (__builtin_expect(entered != CUDA_SUCCESS, 0))                                  \
            return entered;                                                                \
    } while (0)

/* name(parameters) { return body(stream, arguments...); }, for a stream parameter `handle`. */
#define TWO_FORMS(name, suffix, handle, parameters, call) \
    CUresult name parameters                              \
    {                                                     \
        struct stream *stream;                            \
        ENTER_STREAM(handle, false, &stream);             \
        return call;                                      \
    }                                                     \
    CUresult name##suffix parameters                      \
    {                                                     \
        struct stream *stream;                            \
        ENTER_STREAM(handle, true, &stream);              \
        return call;                                      \
    }

/* Calls with a stream parameter of that name, and calls that use the default stream. */
#define STREAM_CALL(name, parameters, call)  TWO_FORMS(name, _ptsz, hStream, parameters, call)
#define DEFAULT_CALL(name, parameters, call) TWO_FORMS(name, _ptds, NULL, parameters, call)

#endif
