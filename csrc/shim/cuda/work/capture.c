/* SPDX-License-Identifier: Apache-2.0 */
/* capture.c -- registry of stream captures; see capture.h.
 *
 * Other streams join a capture by waiting for its events, so the driver is asked whether a stream
 * captures; but only while there are captures at all. The driver may not count captures into the
 * commands of a graphics API (CIG), and no stream joins them: those streams are remembered here.
 */
#include "shim/cuda/work/capture.h"
#include "core/spin.h"

#include <string.h>

/* Most captures at a time that are registered. Work recorded in further CIG captures is charged,
 * and other further ones count for ever if their stream is destroyed before their end. */
enum { ORIGINS = 64 };

int captures;

/* Streams in which captures were begun. */
static struct capture {
    uintptr_t stream; /* its name; 0: none */
    CUcontext context;
    int is_graphics;
    int is_unnamed; /* it is the default stream of a thread, which other threads cannot name */
} origins[ORIGINS];

static int origins_lock;

int capture_has(const struct stream *stream, CUresult *result)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    *result = STREAM_CALL(stream, cuStreamIsCapturing)(stream->handle, &status);
    return *result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

struct capture *capture_find(uintptr_t stream, int is_graphics)
{
    for (unsigned i = 0; i < ORIGINS; i++)
        if (__atomic_load_n(&origins[i].stream, __ATOMIC_ACQUIRE) == stream &&
            (!stream || origins[i].is_graphics == is_graphics))
            return &origins[i];
    return NULL;
}

int capture_records(const struct stream *stream)
{
    CUresult result;

    return capture_find(stream_name(stream), 1) || capture_has(stream, &result);
}

int capture_forbids(const struct stream *stream)
{
    CUresult result;

    return capture_find(stream_name(stream), 1) || capture_has(stream, &result) ||
           result != CUDA_SUCCESS;
}

/* The context of *stream*; NULL: unknown. */
static CUcontext context_of(const struct stream *stream)
{
    CUcontext context = NULL;

    if (stream_is_object(stream->handle)) {
        if (driver.cuStreamGetCtx(stream->handle, &context) != CUDA_SUCCESS)
            context = NULL;
    } else {
        driver.cuCtxGetCurrent(&context);
    }
    return context;
}

int capture_register(const struct stream *stream, int is_graphics)
{
    CUcontext context = context_of(stream);
    struct capture *capture;

    spin_lock(&origins_lock, LOCK_ORIGINS);
    capture = capture_find(stream_name(stream), is_graphics); /* left by an earlier capture */
    if (!capture)
        capture = capture_find(0, 0);
    if (capture) {
        capture->context = context;
        capture->is_graphics = is_graphics;
        capture->is_unnamed = !stream_is_object(stream->handle);
        __atomic_store_n(&capture->stream, stream_name(stream), __ATOMIC_RELEASE);
    }
    spin_unlock(&origins_lock, LOCK_ORIGINS);
    return capture != NULL;
}

int capture_unregister(struct capture *capture)
{
    return __atomic_exchange_n(&capture->stream, 0, __ATOMIC_SEQ_CST) != 0;
}

void capture_count_up(void)
{
    __atomic_add_fetch(&captures, 1, __ATOMIC_SEQ_CST);
}

void capture_count_down(void)
{
    int count = __atomic_load_n(&captures, __ATOMIC_RELAXED);

    while (count > 0 && !__atomic_compare_exchange_n(&captures, &count, count - 1, 0,
                                                     __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        ;
}

/* The capture that was begun in the stream, or thread's default stream, of *capture* ends with it.
 * An origin outlives its capture if that was ended through another of its streams. */
static void end_with(struct capture *capture)
{
    struct stream stream = STREAM_LEGACY((CUstream) capture->stream);
    CUresult result;
    int ends = capture->is_graphics || capture->is_unnamed || capture_has(&stream, &result);

    if (capture_unregister(capture) && ends)
        capture_count_down();
}

void capture_end_stream(CUstream stream)
{
    struct capture *capture;

    if (!stream || !capture_is_going_on())
        return;
    for (int is_graphics = 0; is_graphics < 2; is_graphics++) {
        capture = capture_find((uintptr_t) stream, is_graphics);
        if (capture)
            end_with(capture);
    }
}

void capture_end_context(CUcontext context)
{
    for (unsigned i = 0; i < ORIGINS && capture_is_going_on(); i++)
        if (__atomic_load_n(&origins[i].stream, __ATOMIC_ACQUIRE) &&
            (!context || origins[i].context == context))
            end_with(&origins[i]);
}

void capture_after_fork(void)
{
    captures = 0;
    memset(origins, 0, sizeof(origins));
    origins_lock = 0;
}
