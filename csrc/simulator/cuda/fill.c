/* SPDX-License-Identifier: Apache-2.0 */
/* fill.c -- the memset calls: a value of 1, 2 or 4 bytes, in rows. */
#include "cuda/fill.h"

#include <string.h>

#include "cuda/capture.h"
#include "cuda/entry.h"
#include "cuda/transfer.h"
#include "memory.h"

#define LATENCY_NS 1500

static void fill_bytes(void *to, uint64_t value, uint64_t element, uint64_t count)
{
    if (element == 1) {
        memset(to, (int) value, count);
    } else if (element == 2) {
        for (uint64_t i = 0; i < count; i++)
            ((uint16_t *) to)[i] = (uint16_t) value;
    } else {
        for (uint64_t i = 0; i < count; i++)
            ((uint32_t *) to)[i] = (uint32_t) value;
    }
}

/* Can the device access all bytes from address on? */
static bool is_in_reach(uint64_t address, uint64_t bytes)
{
    uint64_t length;

    for (; bytes && memory_reach(address, &length) && length < bytes; bytes -= length)
        address += length;
    return !bytes || memory_reach(address, &length);
}

bool fill_now(const struct fill *fill)
{
    for (uint64_t row = 0; row < fill->height; row++) {
        uint64_t address = fill->address + row * fill->pitch;
        uint64_t left = fill->width * fill->element;

        while (left) {
            uint64_t length;
            void *bytes = memory_reach(address, &length);

            if (!bytes)
                return false;
            if (length > left)
                length = left;
            if (!memory_make_room(bytes, length))
                return false;
            fill_bytes(bytes, fill->value, fill->element, length / fill->element);
            address += length;
            left -= length;
        }
    }
    return true;
}

static void apply(struct effect *effect)
{
    struct fill fill;
    int none = CUDA_SUCCESS;

    memcpy(&fill, effect->arguments, sizeof(fill));
    if (!fill_now(&fill) && effect->work)
        atomic_compare_exchange_strong(&effect->work->error, &none, CUDA_ERROR_OPERATING_SYSTEM);
}

CUresult fill_submit(struct stream *stream, const struct fill *fill)
{
    const struct device_config *config = &process.machine->config.devices[stream->device];
    uint64_t bytes = fill->width * fill->height * fill->element;
    struct work_order order = {
        .engine = ENGINE_DEVICE_TO_DEVICE,
        .ns = LATENCY_NS + (uint64_t) ((double) bytes * 1e9 / (double) config->memory_bandwidth),
        .effect = {.apply = apply, .work = stream->work},
    };

    if (bytes) {
        REQUIRE(fill->address % fill->element == 0);
        REQUIRE(fill->height == 1 || fill->pitch >= fill->width * fill->element);
        REQUIRE(is_in_reach(fill->address,
                            (fill->height - 1) * fill->pitch + fill->width * fill->element));
    }
    memcpy(order.effect.arguments, fill, sizeof(*fill));
    if (stream->capture)
        return capture_add_fill(stream, fill);
    order.ns = transfer_duration(order.ns);
    return bytes ? queue_submit(stream, &order, NULL) : CUDA_SUCCESS;
}

static CUresult fill_line(struct stream *stream, CUdeviceptr address, uint64_t value,
                          uint64_t element, uint64_t count)
{
    return fill_submit(stream, &(struct fill) {address, 0, value, element, count, 1});
}

static CUresult fill_rows(struct stream *stream, CUdeviceptr address, uint64_t pitch,
                          uint64_t value, uint64_t element, uint64_t width, uint64_t height)
{
    return fill_submit(stream, &(struct fill) {address, pitch, value, element, width, height});
}

/* A call without a stream returns before it is done only if the host cannot access the memory. */
static CUresult settle(struct stream *stream, CUdeviceptr address, CUresult submitted)
{
    struct memory_info info;

    if (submitted != CUDA_SUCCESS || stream->capture || !memory_find(address, &info) ||
        (info.kind != MEMORY_HOST && info.kind != MEMORY_MANAGED))
        return submitted;
    return stream_synchronize(stream);
}

#define LINES(bits, type, value)                                                                  \
    DEFAULT_CALL(cuMemsetD##bits##_v2, (CUdeviceptr dstDevice, type value, size_t N),             \
                 settle(stream, dstDevice, fill_line(stream, dstDevice, value, bits / 8, N)))     \
    STREAM_CALL(cuMemsetD##bits##Async,                                                           \
                (CUdeviceptr dstDevice, type value, size_t N, CUstream hStream),                  \
                fill_line(stream, dstDevice, value, bits / 8, N))                                 \
    DEFAULT_CALL(                                                                                 \
        cuMemsetD2D##bits##_v2,                                                                   \
        (CUdeviceptr dstDevice, size_t dstPitch, type value, size_t Width, size_t Height),        \
        settle(stream, dstDevice,                                                                 \
               fill_rows(stream, dstDevice, dstPitch, value, bits / 8, Width, Height)))           \
    STREAM_CALL(cuMemsetD2D##bits##Async,                                                         \
                (CUdeviceptr dstDevice, size_t dstPitch, type value, size_t Width, size_t Height, \
                 CUstream hStream),                                                               \
                fill_rows(stream, dstDevice, dstPitch, value, bits / 8, Width, Height))

LINES(8, unsigned char, uc)
LINES(16, unsigned short, us)
LINES(32, unsigned int, ui)
