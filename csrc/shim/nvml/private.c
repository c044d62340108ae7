/* SPDX-License-Identifier: Apache-2.0 */
/* private.c -- NVML's private export table, by which nvidia-smi reads processes and utilization.
 *
 * The shim returns a copy of the driver's table in which four functions are ours; the driver's own
 * table is never changed, and all other functions are passed through. Word 0 is the size in bytes,
 * slot s is the pointer at word s.
 */
#include "core/cleanup.h"
#include "shim/driver.h"
#include "shim/nvml/device.h"
#include "shim/nvml/layout.h"
#include "shim/nvml/load.h"
#include "shim/nvml/process.h"
#include "core/pid.h"
#include "shim/shim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLOT_LOADS = 145,
    SLOT_COMPUTE = 213,
    SLOT_MPS = 214,
    SLOT_GRAPHICS = 215,
};

#define NAME_BYTES 4096

/* A process entry up to its name; the older form ends before the last word. */
struct entry {
    uint32_t pid;
    uint32_t unknown;
    uint64_t bytes;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint64_t protected_bytes;
};
_Static_assert(sizeof(struct entry) == 32, "name of a process entry");

/* A sample of one engine. */
struct engine_load {
    uint64_t time_us;
    uint64_t percent;
    uint32_t pid;
    uint8_t unknown[60];
};
_Static_assert(sizeof(struct engine_load) == 80, "an engine of a load record");

typedef nvmlReturn_t read_loads(nvmlDevice_t device, uint64_t last_seen_us, nvmlValueType_t *type,
                                unsigned int *count, void *records);

static struct table_layout layout;
static read_loads *driver_loads;
static const void **copy; /* of the driver's table, for as long as the process */

/* The name that nvidia-smi shows; it omits a process without one. If /proc belongs to another PID
 * namespace, the pid means another process there. */
static void read_name(const struct nvml_process *process, char name[NAME_BYTES])
{
    cleanup_close int file = -1;
    char path[32];

    snprintf(path, sizeof(path), "/proc/%u/cmdline", process->pid);
    if (process->pid_namespace == pid_namespace())
        file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || read(file, name, NAME_BYTES - 1) <= 0)
        snprintf(name, NAME_BYTES, "%.16s", process->comm);
}

static void describe_named(void *entries, size_t place, const struct nvml_process *process)
{
    char *at = (char *) entries + place * (layout.name_at + NAME_BYTES);
    struct entry entry = {.pid = process->pid,
                          .bytes = process->bytes,
                          .gpu_instance = NO_INSTANCE,
                          .compute_instance = NO_INSTANCE};

    memset(at, 0, layout.name_at + NAME_BYTES);
    memcpy(at, &entry, layout.name_at);
    read_name(process, at + layout.name_at);
}

/* nvidia-smi shows nothing at all, or hangs, if one of the lists fails: so none may fail. */
static nvmlReturn_t give_compute(nvmlDevice_t device, unsigned int *count, void *entries)
{
    unsigned found = 0;
    unsigned index;

    ENTER_DEVICE(device, index);
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (entries && layout.name_at)
        found = nvml_each_process(index, *count, entries, describe_named);
    if (found < *count)
        *count = found;
    return NVML_SUCCESS;
}

static nvmlReturn_t give_none(nvmlDevice_t device, unsigned int *count, void *entries)
{
    unsigned index;

    (void) entries;
    ENTER_DEVICE(device, index);
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

static struct engine_load *load_at(void *first, size_t stride, unsigned record)
{
    return (struct engine_load *) ((char *) first + record * stride);
}

/* Clear the samples in which an engine worked for others; nvidia-smi shows the mean over all
 * records, so they must stay. Our total, relative to the share, is spread over ours. */
static void keep_ours(void *first, size_t stride, unsigned count, unsigned index)
{
    uint64_t sum = 0;
    uint64_t seen = 0;
    uint64_t share;

    for (unsigned i = 0; i < count; i++) {
        struct engine_load *load = load_at(first, stride, i);

        if (!nvml_is_ours(load->pid)) {
            load->pid = 0;
            load->percent = 0;
        }
        sum += load->percent;
    }
    share = load_sum_of_share(index, sum, count);
    for (unsigned i = 0; sum && i < count; i++) {
        struct engine_load *load = load_at(first, stride, i);
        uint64_t before = seen * share / sum;

        seen += load->percent;
        load->percent = seen * share / sum - before;
    }
}

static nvmlReturn_t give_loads(nvmlDevice_t device, uint64_t last_seen_us, nvmlValueType_t *type,
                               unsigned int *count, void *records)
{
    size_t stride = layout.load_engines * sizeof(struct engine_load) + sizeof(uint64_t);
    nvmlReturn_t result;
    unsigned index;

    ENTER_DEVICE(device, index);
    if (!layout.load_engines || !count || !records)
        return NVML_ERROR_NOT_SUPPORTED;
    result = driver_loads(device, last_seen_us, type, count, records);
    for (size_t i = 0; result == NVML_SUCCESS && i < layout.load_engines; i++)
        keep_ours((struct engine_load *) records + i, stride, *count, index);
    return result;
}

/* Replace a function in the table, if the driver has one there. Returns the driver's. */
static const void *replace(const void **table, size_t slot, const void *function)
{
    size_t bytes = (size_t) table[0];
    const void *was = (slot + 1) * sizeof(*table) <= bytes ? table[slot] : NULL;

    if (was)
        table[slot] = function;
    return was;
}

static const void **copy_table(const void *const *table)
{
    size_t bytes = (size_t) table[0];
    const void **made = malloc(bytes);
    char release[32];

    if (!made)
        return NULL;
    memcpy(made, table, bytes);
    driver_release(release, sizeof(release));
    layout = layout_of_table(bytes, atoi(release));
    driver_loads = (read_loads *) replace(made, SLOT_LOADS, (const void *) give_loads);
    replace(made, SLOT_COMPUTE, (const void *) give_compute);
    replace(made, SLOT_MPS, (const void *) give_none);
    replace(made, SLOT_GRAPHICS, (const void *) give_none);
    return made;
}

/* No other export tables are known; requests for them get the driver's own answer. */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *uuid)
{
    static const unsigned char known[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                            0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    const void **first = NULL;
    const void **made;
    nvmlReturn_t result;

    if (!nvml_loaded())
        return NVML_ERROR_UNINITIALIZED;
    result = driver.nvmlInternalGetExportTable(table, uuid);
    if (result != NVML_SUCCESS || memcmp(uuid, known, sizeof(known)) != 0)
        return result;
    made = __atomic_load_n(&copy, __ATOMIC_ACQUIRE);
    if (!made) {
        made = copy_table(*table);
        /* The first thread's copy stays; the other variables get the same values from each. */
        if (made && !__atomic_compare_exchange_n(&copy, &first, made, 0, __ATOMIC_ACQ_REL,
                                                 __ATOMIC_ACQUIRE)) {
            free(made);
            made = first;
        }
    }
    *table = made;
    return made ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}
