/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.c -- checks a copy, computes its engine and duration, and moves the bytes when it ends.
 *
 * A program may reuse pageable host memory as soon as the call returns. So the bytes of a small
 * copy to a device are staged first; for other copies of pageable memory the call waits.
 */
#include "cuda/transfer.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/capture.h"
#include "memory.h"

#define LATENCY_NS       1500
#define STAGED_BYTES_MAX UINT64_C(0x100000)

static __thread uint64_t next_ns; /* duration of the next copy or memset; 0: not set */

__attribute__((visibility("default"))) void sim_transfer_takes(uint64_t ns)
{
    next_ns = ns;
}

uint64_t transfer_duration(uint64_t ns)
{
    uint64_t given = next_ns;

    next_ns = 0;
    return given ? given : ns;
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

/* Is it an address in a device's range that has no memory? */
static bool is_unmapped(uint64_t address)
{
    struct memory_info info;

    return memory_heap_of(address) || vmm_find(address, &info);
}

/* Bytes from the first to the last that the copy accesses at an endpoint, gaps included. */
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

static void set_engine_and_time(struct work_order *order, const struct transfer *transfer,
                                uint32_t device)
{
    const struct device_config *config = &process.machine->config.devices[device];
    bool to_device = is_device(transfer->to.address);
    bool from_device = is_device(transfer->from.address);
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

static bool is_pageable(uint64_t address)
{
    struct memory_info info;

    return !is_device(address) && !host_find(address, &info);
}

/* Can the copy access all its bytes at an endpoint? */
static bool is_accessible(const struct endpoint *end, const struct transfer *transfer)
{
    return is_device(end->address) ? transfer_is_device(end->address, extent(end, transfer))
                                   : !is_unmapped(end->address);
}

/* Copy the bytes to staging memory, and let the transfer read them there. False: there are too
 * many, or no memory. */
static bool stage(struct transfer *transfer, struct effect *effect)
{
    uint64_t width = transfer->width;
    struct endpoint *from = &transfer->from;
    struct transfer staging = *transfer;

    if (volume(transfer) > STAGED_BYTES_MAX)
        return false;
    effect->memory = malloc(volume(transfer));
    if (!effect->memory)
        return false;
    staging.to = (struct endpoint) {(uint64_t) effect->memory, width, width * transfer->height};
    move(&staging);
    *from = staging.to;
    return true;
}

/* Must the call wait for the copy, since the program may reuse the host memory afterwards? Staging
 * avoids that for copies to a device. */
static bool must_wait(struct transfer *transfer, struct effect *effect, uint32_t device)
{
    if (is_pageable(transfer->to.address))
        return true;
    return is_pageable(transfer->from.address) && !queue_is_immediate(device) &&
           !stage(transfer, effect);
}

CUresult transfer_submit(struct stream *stream, const struct transfer *asked,
                         enum transfer_wait wait)
{
    struct transfer transfer = *asked;
    struct work_order order = {.effect = {.apply = apply, .work = stream->work}};
    struct moment moment;
    CUresult result;

    if (!volume(&transfer))
        return stream->capture ? capture_add_empty(stream) : CUDA_SUCCESS;
    REQUIRE(transfer.to.address && transfer.from.address);
    REQUIRE(is_accessible(&transfer.to, &transfer) && is_accessible(&transfer.from, &transfer));
    if (stream->capture)
        return capture_add_transfer(stream, &transfer);
    set_engine_and_time(&order, &transfer, stream->device);
    if (wait == TRANSFER_ORDERED && must_wait(&transfer, &order.effect, stream->device))
        wait = TRANSFER_WAITS;
    memcpy(order.effect.arguments, &transfer, sizeof(transfer));
    order.ns = transfer_duration(order.ns);
    result = queue_submit(stream, &order, &moment);
    if (result == CUDA_SUCCESS && wait == TRANSFER_WAITS) {
        queue_moment_wait(&moment);
        result = (CUresult) atomic_load(&stream->work->error);
    }
    return result;
}
