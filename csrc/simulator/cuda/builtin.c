/* SPDX-License-Identifier: Apache-2.0 */
/* builtin.c -- sim_spin, sim_work, sim_fill, sim_add, sim_saxpy, sim_copy, sim_hold.
 *
 *   sim_spin(u64 ns)                                 occupies its SMs for so long
 *   sim_work(u64 ns, u64 out)                        the same; writes when it began and ended, ns
 *   sim_fill(u64 address, u32 value, u64 count)      count words of 32 bits
 *   sim_add(u64 out, u64 a, u64 b, u64 count)        out[i] = a[i] + b[i] in f32
 *   sim_saxpy(u64 y, u64 x, f32 a, u64 count)        y[i] = a * x[i] + y[i] in f32
 *   sim_copy(u64 out, u64 in, u64 bytes)
 *   sim_hold(u64 ns, u64 count)                      occupies so many SMs, whatever its grid
 *
 * A suffix that begins with $ is ignored: sim_hold$1 and sim_hold$2 are two functions.
 *
 * An address that is no device memory is ILLEGAL_ADDRESS, a sticky error as on a device.
 */
#include "cuda/builtin.h"

#include <string.h>

#include "memory.h"

#define LATENCY_NS 1500

static const struct {
    const char *name;
    unsigned int count;
    unsigned int narrow; /* the argument that has 32 bits; BUILTIN_ARGUMENTS: none */
} builtins[] = {
    [BUILTIN_SPIN] = {"sim_spin", 1, BUILTIN_ARGUMENTS},
    [BUILTIN_WORK] = {"sim_work", 2, BUILTIN_ARGUMENTS},
    [BUILTIN_FILL] = {"sim_fill", 3, 1},
    [BUILTIN_ADD] = {"sim_add", 4, BUILTIN_ARGUMENTS},
    [BUILTIN_SAXPY] = {"sim_saxpy", 4, 2},
    [BUILTIN_COPY] = {"sim_copy", 3, BUILTIN_ARGUMENTS},
    [BUILTIN_HOLD] = {"sim_hold", 2, BUILTIN_ARGUMENTS},
};

enum builtin builtin_find(const char *name)
{
    size_t length = strcspn(name, "$");

    for (size_t i = BUILTIN_SPIN; i < sizeof(builtins) / sizeof(builtins[0]); i++)
        if (strlen(builtins[i].name) == length && !strncmp(name, builtins[i].name, length))
            return (enum builtin) i;
    return BUILTIN_NONE;
}

bool builtin_arguments(enum builtin builtin, void *const *parameters, const void *packed,
                       size_t size, uint64_t *arguments)
{
    memset(arguments, 0, BUILTIN_ARGUMENTS * sizeof(*arguments));
    for (unsigned int i = 0; i < builtins[builtin].count; i++) {
        size_t bytes = i == builtins[builtin].narrow ? sizeof(uint32_t) : sizeof(uint64_t);
        const void *from = parameters ? parameters[i] : (const char *) packed + 8 * (size_t) i;

        if (parameters ? !from : !packed || 8 * (size_t) i + bytes > size)
            return false;
        memcpy(&arguments[i], from, bytes);
    }
    return true;
}

static void fail(struct effect *effect, CUresult error)
{
    int none = CUDA_SUCCESS;

    atomic_compare_exchange_strong(&effect->work->error, &none, error);
    process_fail_clients(error);
}

/* Walk count elements of three ranges together (in may be one range twice) and do each piece. */
static CUresult walk(const uint64_t *addresses, unsigned int ranges, uint64_t count,
                     uint64_t element, uint64_t value,
                     void (*piece)(char *const *bytes, uint64_t count, uint64_t value))
{
    for (uint64_t done = 0; done < count;) {
        uint64_t least = (count - done) * element;
        char *bytes[3] = {NULL};

        for (unsigned int i = 0; i < ranges; i++) {
            uint64_t length = 0;

            bytes[i] = memory_reach(addresses[i] + done * element, &length);
            if (!bytes[i] || length < element)
                return CUDA_ERROR_ILLEGAL_ADDRESS;
            if (length < least)
                least = length;
        }
        if (!memory_make_room(bytes[0], least))
            return CUDA_ERROR_OPERATING_SYSTEM;
        piece(bytes, least / element, value);
        done += least / element;
    }
    return CUDA_SUCCESS;
}

static void fill_piece(char *const *bytes, uint64_t count, uint64_t value)
{
    for (uint64_t i = 0; i < count; i++)
        ((uint32_t *) bytes[0])[i] = (uint32_t) value;
}

static void add_piece(char *const *bytes, uint64_t count, uint64_t value)
{
    (void) value;
    for (uint64_t i = 0; i < count; i++)
        ((float *) bytes[0])[i] = ((const float *) bytes[1])[i] + ((const float *) bytes[2])[i];
}

static void saxpy_piece(char *const *bytes, uint64_t count, uint64_t value)
{
    uint32_t bits = (uint32_t) value;
    float factor;

    memcpy(&factor, &bits, sizeof(factor));
    for (uint64_t i = 0; i < count; i++)
        ((float *) bytes[0])[i] += factor * ((const float *) bytes[1])[i];
}

static void copy_piece(char *const *bytes, uint64_t count, uint64_t value)
{
    (void) value;
    memmove(bytes[0], bytes[1], count);
}

static void fill(struct effect *effect)
{
    const uint64_t *arguments = effect->arguments;
    CUresult result = arguments[0] % 4
                          ? CUDA_ERROR_MISALIGNED_ADDRESS
                          : walk(arguments, 1, arguments[2], 4, arguments[1], fill_piece);

    if (result != CUDA_SUCCESS)
        fail(effect, result);
}

static void add(struct effect *effect)
{
    const uint64_t *arguments = effect->arguments;
    CUresult result = (arguments[0] | arguments[1] | arguments[2]) % 4
                          ? CUDA_ERROR_MISALIGNED_ADDRESS
                          : walk(arguments, 3, arguments[3], 4, 0, add_piece);

    if (result != CUDA_SUCCESS)
        fail(effect, result);
}

static void saxpy(struct effect *effect)
{
    const uint64_t *arguments = effect->arguments;
    CUresult result = (arguments[0] | arguments[1]) % 4
                          ? CUDA_ERROR_MISALIGNED_ADDRESS
                          : walk(arguments, 2, arguments[3], 4, arguments[2], saxpy_piece);

    if (result != CUDA_SUCCESS)
        fail(effect, result);
}

static void copy(struct effect *effect)
{
    CUresult result = walk(effect->arguments, 2, effect->arguments[2], 1, 0, copy_piece);

    if (result != CUDA_SUCCESS)
        fail(effect, result);
}

static void write_times(struct effect *effect)
{
    uint64_t begun = effect->begun + process.machine->config.law.launch_ns;
    const uint64_t times[] = {begun < effect->finished ? begun : effect->finished,
                              effect->finished};
    uint64_t out = effect->arguments[1];

    for (unsigned int i = 0; i < 2; i++) {
        uint64_t length = 0;
        char *bytes = memory_reach(out + i * sizeof(*times), &length);

        if (!bytes || length < sizeof(*times))
            fail(effect, CUDA_ERROR_ILLEGAL_ADDRESS);
        else if (!memory_make_room(bytes, sizeof(*times)))
            fail(effect, CUDA_ERROR_OPERATING_SYSTEM);
        else
            memcpy(bytes, &times[i], sizeof(*times));
    }
}

void builtin_order(enum builtin builtin, const uint64_t *arguments,
                   const struct device_config *config, struct work_order *order)
{
    double bytes = 0;

    memcpy(order->effect.arguments, arguments, BUILTIN_ARGUMENTS * sizeof(*arguments));
    switch (builtin) {
    case BUILTIN_NONE:
        return;
    case BUILTIN_SPIN:
        order->ns = arguments[0];
        return;
    case BUILTIN_WORK:
        order->ns = arguments[0];
        order->effect.apply = write_times;
        return;
    case BUILTIN_HOLD:
        order->ns = arguments[0];
        order->units = arguments[1] < config->sm_count ? (uint32_t) arguments[1] : config->sm_count;
        return;
    case BUILTIN_FILL:
        bytes = 4 * (double) arguments[2];
        order->effect.apply = fill;
        break;
    case BUILTIN_ADD:
        bytes = 12 * (double) arguments[3];
        order->effect.apply = add;
        break;
    case BUILTIN_SAXPY:
        bytes = 12 * (double) arguments[3];
        order->effect.apply = saxpy;
        break;
    case BUILTIN_COPY:
        bytes = 2 * (double) arguments[2];
        order->effect.apply = copy;
        break;
    }
    order->ns = LATENCY_NS + (uint64_t) (bytes * 1e9 / (double) config->memory_bandwidth);
}
