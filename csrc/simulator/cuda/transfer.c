/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.c -- checks a copy, computes its engine and duration, and performs it when it is due.
 *
 * A program may reuse pageable host memory as soon as the call returns: a small copy to the device
 * is staged; for all other such copies the call waits.
 */
#include "cuda/transfer.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/capture.h"
#include "memory.h"

#define LATENCY_NS 1500
#define ASIDE_MOST UINT64_C(0x100000)

static __thread uint64_t asked_ns; /* 0: nothing */

__attribute__((visibility("default"))) void sim_transfer_takes(uint64_t ns)
{
    asked_ns = ns;
}

uint64_t transfer_duration(uint64_t ns)
{
    uint64_t asked = asked_ns;

    asked_ns = 0;
    return asked ? asked : ns;
}

bool transfer_is_device(uint64_t address, uint64_t bytes)
{
    uint64_t length;

    while (bytes) {
        if (!memory_chunk(address, &length))
            return false;
        if (length >= bytes)
            return true;
        address += length;
        bytes -= length;
    }
    return true;
}

static bool is_device(uint64_t address)
{
    uint64_t length;

    return memory_chunk(address, &length);
}

/* Is it a device address without memory? */
static bool is_unmapped(uint64_t address)
{
    struct memory_info info;

    return memory_heap_of(address) || vmm_find(address, &info);
}

/* Bytes from the first to the last that the copy touches at an endpoint. */
static uint64_t extent(const struct endpoint *end, const struct transfer *transfer)
{
    return (transfer->depth - 1) * end->slice + (transfer->height - 1) * end->pitch +
           transfer->width;
}

static uint64_t volume(const struct transfer *transfer)
{
    return transfer->width * transfer->height * transfer->depth;
}

static bool move_row(uint64_t to, uint64_t from, uint64_t bytes)
{
    while (bytes) {
        uint64_t to_length = bytes;
        uint64_t from_length = bytes;
        const void *source = memory_chunk(from, &from_length);
        void *target = memory_chunk(to, &to_length);
        uint64_t length = to_length < from_length ? to_length : from_length;

        if (length > bytes)
            length = bytes;
        if (target && !memory_make_room(target, length))
            return false;
        memmove(target ? target : (void *) to, source ? source : (const void *) from, length);
        to += length;
        from += length;
        bytes -= length;
    }
    return true;
}

static bool move(const struct transfer *transfer)
{
    uint64_t width = transfer->width;

    /* Rows without gaps are one row. */
    if (transfer->depth == 1 && transfer->to.pitch == width && transfer->from.pitch == width)
        return move_row(transfer->to.address, transfer->from.address, volume(transfer));
    for (uint64_t z = 0; z < transfer->depth; z++)
        for (uint64_t y = 0; y < transfer->height; y++)
            if (!move_row(transfer->to.address + z * transfer->to.slice + y * transfer->to.pitch,
                          transfer->from.address + z * transfer->from.slice +
                              y * transfer->from.pitch,
                          width))
                return false;
    return true;
}

static void apply(struct effect *effect)
{
    struct transfer transfer;
    int none = CUDA_SUCCESS;

    _Static_assert(sizeof(transfer) <= sizeof(effect->arguments), "a transfer is an argument");
    memcpy(&transfer, effect->arguments, sizeof(transfer));
    if (!move(&transfer) && effect->work)
        atomic_compare_exchange_strong(&effect->work->error, &none, CUDA_ERROR_OPERATING_SYSTEM);
}

static void set_pace(struct work_order *order, const struct transfer *transfer, uint32_t device,
                     bool to_device, bool from_device)
{
    const struct device_config *config = &process.machine->config.devices[device];
    struct memory_info to, from;
    uint64_t bandwidth = config->pcie_bandwidth;
    uint64_t bytes = volume(transfer);

    if (to_device && from_device) {
        order->engine = ENGINE_DEVICE_TO_DEVICE;
        if (memory_find(transfer->to.address, &to) && memory_find(transfer->from.address, &from) &&
            to.device == from.device) {
            bandwidth = config->memory_bandwidth;
            bytes *= 2; /* read and written */
        }
    } else {
        order->engine = to_device ? ENGINE_HOST_TO_DEVICE : ENGINE_DEVICE_TO_HOST;
    }
    order->ns = LATENCY_NS + (uint64_t) ((double) bytes * 1e9 / (double) bandwidth);
}

static bool is_pinned(uint64_t address)
{
    struct memory_info info;

    return host_find(address, &info);
}

/* Stage the bytes for the device; the transfer reads the staged copy. */
static bool put_aside(struct transfer *transfer, struct effect *effect)
{
    uint64_t width = transfer->width;
    struct endpoint *from = &transfer->from;
    struct transfer aside = *transfer;

    effect->memory = malloc(volume(transfer));
    if (!effect->memory)
        return false;
    aside.to = (struct endpoint) {(uint64_t) effect->memory, width, width * transfer->height};
    move(&aside);
    *from = aside.to;
    return true;
}

CUresult transfer_submit(struct stream *stream, const struct transfer *asked,
                         enum transfer_wait wait)
{
    struct transfer transfer = *asked;
    struct work_order order = {.effect = {.apply = apply, .work = stream->work}};
    bool to_device, from_device;
    struct moment moment;
    CUresult result;

    if (!volume(&transfer))
        return stream->capture ? capture_add_empty(stream) : CUDA_SUCCESS;
    REQUIRE(transfer.to.address && transfer.from.address);
    to_device = is_device(transfer.to.address);
    from_device = is_device(transfer.from.address);
    if (to_device && !transfer_is_device(transfer.to.address, extent(&transfer.to, &transfer)))
        return CUDA_ERROR_INVALID_VALUE;
    if (from_device &&
        !transfer_is_device(transfer.from.address, extent(&transfer.from, &transfer)))
        return CUDA_ERROR_INVALID_VALUE;
    if ((!to_device && is_unmapped(transfer.to.address)) ||
        (!from_device && is_unmapped(transfer.from.address)))
        return CUDA_ERROR_INVALID_VALUE;
    set_pace(&order, &transfer, stream->device, to_device, from_device);
    if (!stream->capture && wait == TRANSFER_ORDERED) {
        bool loose = !from_device && !is_pinned(transfer.from.address);

        if (!to_device && !is_pinned(transfer.to.address))
            wait = TRANSFER_WAITS;
        else if (loose && !queue_is_immediate(stream->device) &&
                 (volume(&transfer) > ASIDE_MOST || !put_aside(&transfer, &order.effect)))
            wait = TRANSFER_WAITS;
    }
    memcpy(order.effect.arguments, &transfer, sizeof(transfer));
    if (stream->capture)
        return capture_add_transfer(stream, &transfer);
    order.ns = transfer_duration(order.ns);
    result = queue_submit(stream, &order, &moment);
    if (result == CUDA_SUCCESS && wait == TRANSFER_WAITS) {
        queue_moment_wait(&moment);
        result = (CUresult) atomic_load(&stream->work->error);
    }
    return result;
}
