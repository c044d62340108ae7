/* SPDX-License-Identifier: Apache-2.0 */
/* private.c -- the private export table of nvidia-smi, as far as nvidia-smi needs it.
 *
 * Word 0 is the table's size in bytes, slot s the pointer at word s. The slot numbers, their
 * arguments and the layout of their results were measured from outside, by running the
 * nvidia-smi of release 550 over tables of our own; later releases up to 580 are known to use
 * the same. Empty slots are shown as N/A. Nothing here identifies or authenticates the library.
 */
#include "api.h"
#include "lists.h"
#include "source.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *uuid)
    __attribute__((visibility("default")));

enum {
    SLOT_CONNECTION = 23,
    SLOT_LOAD_SUPPORTED = 72,
    SLOT_LOAD_RECORDS = 145,
    SLOT_COMPUTE = 213,
    SLOT_MPS = 214,
    SLOT_GRAPHICS = 215,
    SLOT_HOST_PCIE_GENERATION = 230,
    SLOT_PART_NUMBER = 231,
    SLOT_FRU_PART_NUMBER = 237,
    SLOTS = 251,
};

/* An entry of the process lists. A process without a name is left out of the plain table. */
struct named_process {
    nvmlProcessDetail_v1_t detail;
    char name[4096];
};
_Static_assert(sizeof(struct named_process) == 4128, "stride of a process entry");
_Static_assert(offsetof(struct named_process, name) == 32, "name of a process entry");

/* The load of one process in each engine, at one instant. */
struct engine_load {
    uint64_t time_us;
    uint64_t percent;
    uint32_t pid;
    uint8_t unknown[60];
};

enum load_engine { LOAD_SM, LOAD_MEMORY, LOAD_ENC, LOAD_DEC, LOAD_JPG, LOAD_OFA, LOAD_ENGINES };

struct load_record {
    struct engine_load engines[LOAD_ENGINES];
    uint64_t unknown;
};
_Static_assert(sizeof(struct load_record) == 488, "stride of a load record");

static void describe_named(void *entries, size_t index, const struct source_process *process)
{
    struct named_process *entry = &((struct named_process *) entries)[index];

    memset(entry, 0, sizeof(*entry));
    nvml_describe_detail(&entry->detail, process);
    if (nvml_process_name(process->pid, entry->name, sizeof(entry->name)) != NVML_SUCCESS)
        entry->name[0] = '\0';
}

/* If one of the three lists failed, nvidia-smi would show nothing at all, or hang: an error gives
 * an empty list.
 */
static nvmlReturn_t give_list(nvmlDevice_t device, enum nvml_list kind, unsigned int *count,
                              struct named_process *entries)
{
    REQUIRE(count);
    if (nvml_list(device, kind, count, entries, describe_named) != NVML_SUCCESS)
        *count = 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t compute_list(nvmlDevice_t device, unsigned int *count,
                                 struct named_process *entries)
{
    ENTER_ANY(device);
    return give_list(device, NVML_LIST_COMPUTE, count, entries);
}

static nvmlReturn_t mps_list(nvmlDevice_t device, unsigned int *count,
                             struct named_process *entries)
{
    ENTER_ANY(device);
    return give_list(device, NVML_LIST_MPS, count, entries);
}

static nvmlReturn_t graphics_list(nvmlDevice_t device, unsigned int *count,
                                  struct named_process *entries)
{
    ENTER_ANY(device);
    return give_list(device, NVML_LIST_GRAPHICS, count, entries);
}

/* Assign a process its share of the remaining records of one engine, and at least one: nvidia-smi
 * shows no load, instead of 0, for a process that is in no record.
 */
static size_t fill_instants(struct load_record *records, size_t count, size_t from,
                            enum load_engine engine, uint32_t pid, unsigned int percent)
{
    size_t until = from + (percent * count + 50) / 100;

    if (until == from && from < count)
        records[from++].engines[engine].pid = pid;
    for (; from < until && from < count; from++) {
        records[from].engines[engine].pid = pid;
        records[from].engines[engine].percent = 100;
    }
    return from;
}

/* A record is an instant, at which an engine worked for one process or for none; the reader
 * takes the mean over all records.
 */
static nvmlReturn_t load_records(nvmlDevice_t device, uint64_t last_seen_us, nvmlValueType_t *type,
                                 unsigned int *count, struct load_record *records)
{
    struct timespec now;
    size_t filled[LOAD_ENGINES] = {0};

    ENTER_DEVICE(device);
    REQUIRE(type && count && records);
    struct source_process *processes = calloc(SOURCE_PROCESSES, sizeof(*processes));
    struct source_load *loads = calloc(SOURCE_PROCESSES, sizeof(*loads));
    size_t found = 0;
    if (processes && loads)
        found = source_process_loads(device->index, processes, loads);

    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t end = (uint64_t) now.tv_sec * 1000000 + (uint64_t) now.tv_nsec / 1000;
    uint64_t begin = end - 1000000 > last_seen_us ? end - 1000000 : last_seen_us;
    memset(records, 0, *count * sizeof(*records));
    for (size_t i = 0; i < *count; i++) {
        for (size_t engine = 0; engine < LOAD_ENGINES; engine++)
            records[i].engines[engine].time_us = begin + (end - begin) * (i + 1) / *count;
    }
    for (size_t i = 0; i < found; i++) {
        const unsigned int percents[LOAD_ENGINES] = {loads[i].sm, loads[i].memory};

        for (enum load_engine engine = 0; engine < LOAD_ENGINES; engine++)
            filled[engine] = fill_instants(records, *count, filled[engine], engine,
                                           processes[i].pid, percents[engine]);
    }
    *type = NVML_VALUE_TYPE_UNSIGNED_INT;
    free(processes);
    free(loads);
    return NVML_SUCCESS;
}

static nvmlReturn_t load_supported(nvmlDevice_t device)
{
    ENTER_DEVICE(device);
    return NVML_SUCCESS;
}

/* How the devices at two PCI addresses are connected, for the matrix of `topo -m`: 0 to 4 are
 * PIX, PXB, PHB, NODE and SYS.
 */
static nvmlReturn_t connection(const char *a, const char *b, unsigned int *kind)
{
    nvmlGpuTopologyLevel_t level;
    nvmlDevice_t first, second;

    REQUIRE(a && b && kind);
    nvmlReturn_t result = nvmlDeviceGetHandleByPciBusId_v2(a, &first);
    if (result == NVML_SUCCESS)
        result = nvmlDeviceGetHandleByPciBusId_v2(b, &second);
    if (result == NVML_SUCCESS)
        result = nvmlDeviceGetTopologyCommonAncestor(first, second, &level);
    if (result == NVML_SUCCESS)
        *kind = level == NVML_TOPOLOGY_INTERNAL ? 0 : (unsigned int) level / 10 - 1;
    return result;
}

static nvmlReturn_t host_pcie_generation(nvmlDevice_t device, unsigned int *generation)
{
    ENTER_DEVICE(device);
    REQUIRE(generation);
    *generation = device->pcie_generation;
    return NVML_SUCCESS;
}

static nvmlReturn_t part_number(nvmlDevice_t device, char *text, unsigned int length)
{
    ENTER_DEVICE(device);
    return nvml_give_text(text, length, "simulated");
}

static const void *const private_table[SLOTS] = {
    [0] = (const void *) (SLOTS * sizeof(void *)),
    [SLOT_CONNECTION] = (const void *) connection,
    [SLOT_LOAD_SUPPORTED] = (const void *) load_supported,
    [SLOT_LOAD_RECORDS] = (const void *) load_records,
    [SLOT_COMPUTE] = (const void *) compute_list,
    [SLOT_MPS] = (const void *) mps_list,
    [SLOT_GRAPHICS] = (const void *) graphics_list,
    [SLOT_HOST_PCIE_GENERATION] = (const void *) host_pcie_generation,
    [SLOT_PART_NUMBER] = (const void *) part_number,
    [SLOT_FRU_PART_NUMBER] = (const void *) part_number,
};

nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *uuid)
{
    static const unsigned char known[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                            0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

    if (!table || !uuid || memcmp(uuid, known, sizeof(known)) != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *table = private_table;
    return NVML_SUCCESS;
}
