/* SPDX-License-Identifier: Apache-2.0 */
/* hostcall.c -- host functions in streams, and stream memory operations (write and wait values). */
#include <stdlib.h>
#include <string.h>

#include "cuda/capture.h"
#include "cuda/entry.h"
#include "memory.h"

struct host_call {
    CUhostFn function;
    CUstreamCallback callback; /* of cuStreamAddCallback */
    CUstream handle;
    struct work_context *work;
    void *data;
};

static void run_call(void *data)
{
    struct host_call *call = data;

    if (call->function)
        call->function(call->data);
    else
        call->callback(call->handle, (CUresult) atomic_load(&call->work->error), call->data);
    free(call);
}

static CUresult submit_call(struct stream *stream, const struct host_call *call)
{
    struct host_call *copy = malloc(sizeof(*copy));
    CUresult result;

    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *copy = *call;
    result = gate_submit(stream, NULL, run_call, copy);
    if (result != CUDA_SUCCESS)
        free(copy);
    return result;
}

static CUresult launch_function(struct stream *stream, CUhostFn function, void *data)
{
    REQUIRE(function);
    if (stream->capture)
        return capture_add_host(stream, function, data);
    return submit_call(stream, &(struct host_call) {.function = function, .data = data});
}

static CUresult add_callback(struct stream *stream, CUstream handle, CUstreamCallback callback,
                             void *data, unsigned int flags)
{
    REQUIRE(callback && !flags);
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return submit_call(
        stream, &(struct host_call) {
                    .callback = callback, .handle = handle, .work = stream->work, .data = data});
}

CUresult hostcall_submit(struct stream *stream, CUhostFn function, void *data)
{
    return launch_function(stream, function, data);
}

STREAM_CALL(cuLaunchHostFunc, (CUstream hStream, CUhostFn fn, void *userData),
            launch_function(stream, fn, userData))
STREAM_CALL(cuLaunchHostFunc_v2,
            (CUstream hStream, CUhostFn fn, void *userData,
             unsigned int syncMode __attribute__((unused))),
            launch_function(stream, fn, userData))
STREAM_CALL(cuStreamAddCallback,
            (CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags),
            add_callback(stream, hStream, callback, userData, flags))

/* --- words ---------------------------------------------------------------------------------- */

struct word {
    uint64_t address;
    uint64_t value;
    uint32_t bytes; /* 4 or 8 */
    unsigned int condition;
};

static void *find_word(uint64_t address, uint32_t bytes)
{
    struct memory_info info;
    void *word = memory_translate(address, bytes);

    if (!word && host_find(address, &info))
        word = (void *) address;
    return word;
}

static void write_word(struct effect *effect)
{
    void *word = find_word(effect->arguments[0], (uint32_t) effect->arguments[2]);

    if (!word)
        return;
    if (effect->arguments[2] == 4)
        __atomic_store_n((uint32_t *) word, (uint32_t) effect->arguments[1], __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *) word, effect->arguments[1], __ATOMIC_RELEASE);
}

static CUresult submit_write(struct stream *stream, CUdeviceptr address, uint64_t value,
                             uint32_t bytes)
{
    struct work_order order = {
        .engine = ENGINE_NONE,
        .effect = {.apply = write_word, .arguments = {address, value, bytes}},
    };

    REQUIRE(address % bytes == 0 && find_word(address, bytes));
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return queue_submit(stream, &order, NULL);
}

static bool word_is_there(void *data)
{
    const struct word *wanted = data;
    const void *word = find_word(wanted->address, wanted->bytes);
    uint64_t now;
    int64_t ahead;

    if (!word)
        return true;
    if (wanted->bytes == 4) {
        now = __atomic_load_n((const uint32_t *) word, __ATOMIC_ACQUIRE);
        ahead = (int32_t) (uint32_t) (now - wanted->value);
    } else {
        now = __atomic_load_n((const uint64_t *) word, __ATOMIC_ACQUIRE);
        ahead = (int64_t) (now - wanted->value);
    }
    switch (wanted->condition) {
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == wanted->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return now & wanted->value;
    case CU_STREAM_WAIT_VALUE_NOR:
        return wanted->bytes == 4 ? (uint32_t) ~(now | wanted->value) != 0
                                  : ~(now | wanted->value) != 0;
    default:
        return ahead >= 0;
    }
}

static CUresult submit_wait(struct stream *stream, CUdeviceptr address, uint64_t value,
                            uint32_t bytes, unsigned int flags)
{
    struct word *word;
    CUresult result;

    REQUIRE(address % bytes == 0 && find_word(address, bytes));
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    word = malloc(sizeof(*word));
    if (!word)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *word = (struct word) {address, value, bytes, flags & 3};
    result = gate_submit(stream, word_is_there, free, word);
    if (result != CUDA_SUCCESS)
        free(word);
    return result;
}

static CUresult submit_batch(struct stream *stream, unsigned int count,
                             const CUstreamBatchMemOpParams *operations, unsigned int flags)
{
    CUresult result = CUDA_SUCCESS;

    REQUIRE((operations || !count) && !flags);
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUstreamBatchMemOpParams *op = &operations[i];

        switch ((int) op->operation) {
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            result = submit_write(stream, op->writeValue.address, op->writeValue.value, 4);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            result = submit_write(stream, op->writeValue.address, op->writeValue.value64, 8);
            break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            result = submit_wait(stream, op->waitValue.address, op->waitValue.value, 4,
                                 op->waitValue.flags);
            break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            result = submit_wait(stream, op->waitValue.address, op->waitValue.value64, 8,
                                 op->waitValue.flags);
            break;
        case CU_STREAM_MEM_OP_BARRIER:
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
            break;
        default:
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    return result;
}

#define WORDS(bits)                                                                             \
    TWO_FORMS(cuStreamWriteValue##bits##_v2, _ptsz, stream_,                                    \
              (CUstream stream_, CUdeviceptr addr, cuuint##bits##_t value,                      \
               unsigned int flags __attribute__((unused))),                                     \
              submit_write(stream, addr, value, bits / 8))                                      \
    TWO_FORMS(cuStreamWaitValue##bits##_v2, _ptsz, stream_,                                     \
              (CUstream stream_, CUdeviceptr addr, cuuint##bits##_t value, unsigned int flags), \
              submit_wait(stream, addr, value, bits / 8, flags))

WORDS(32)
WORDS(64)

TWO_FORMS(cuStreamBatchMemOp_v2, _ptsz, stream_,
          (CUstream stream_, unsigned int count, CUstreamBatchMemOpParams *paramArray,
           unsigned int flags),
          submit_batch(stream, count, paramArray, flags))
