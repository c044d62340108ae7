/* SPDX-License-Identifier: Apache-2.0 */
/* config.h -- configuration of the simulated machine (machine.conf): hardware and timing.
 *
 * Python writes the file (pyvgpu/simulation/simulator.py), this reads it. No table of models here.
 */
#ifndef PYVGPU_SIMULATOR_CONFIG_H
#define PYVGPU_SIMULATOR_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CONFIG_GPUS = 16,
    CONFIG_DEVICES = 64,   /* with the compute instances of MIG, see mig.h */
    CONFIG_INSTANCES = 10, /* of one device */
    CONFIG_TEXT = 128,
    CONFIG_PROFILES = 8,
    CONFIG_STARTS = 8,
};

/* How a device and its driver behave: pyvgpu/simulation/law.py says what each key means, and its
 * rule. */
struct law {
#define LAW_NUMBER(key, least, most, usual, rule) uint64_t key;
#define LAW_FLAG(key, usual, rule)                bool key;
#include "law.inc"
#undef LAW_NUMBER
#undef LAW_FLAG
};

/* A kind of GPU instance that a device can have: pyvgpu/simulation/mig.py has the tables. */
struct mig_profile {
    char name[24];   /* 1g.10gb */
    uint32_t number; /* NVML_GPU_INSTANCE_PROFILE_* */
    uint32_t id;     /* by which it is created */
    uint32_t memory_mib;
    uint32_t sms;
    uint32_t slices; /* of compute */
    uint32_t most;   /* instances */
    uint32_t size;   /* in memory slices */
    uint32_t copy_engines;
    uint32_t decoders;
    uint32_t jpegs;
    uint32_t ofas;
    uint32_t start_count;
    uint32_t starts[CONFIG_STARTS];
};

struct device_config {
    char uuid[CONFIG_TEXT];
    char name[CONFIG_TEXT];
    char pci[CONFIG_TEXT]; /* 0000:01:00.0 */
    char serial[CONFIG_TEXT];
    uint64_t memory_bytes;     /* available to CUDA programs */
    uint64_t reserved_bytes;   /* NVML's total has these on top */
    uint64_t context_bytes;    /* charged for a context */
    uint64_t memory_bandwidth; /* bytes per second */
    uint64_t pcie_bandwidth;   /* bytes per second */
    uint64_t l2_bytes;
    uint32_t sm_count;
    uint32_t capability_major;
    uint32_t capability_minor;
    uint32_t sm_clock_khz;
    uint32_t memory_clock_khz;
    uint32_t memory_bus_bits;
    uint32_t pcie_generation;
    uint32_t power_limit_mw;
    uint32_t numa_node;
    uint32_t nvlinks;
    uint32_t mig_profile_count; /* 0: no MIG */
    struct mig_profile mig_profiles[CONFIG_PROFILES];
    uint32_t parent;  /* the device itself, or that of a MIG unit */
    uint32_t account; /* whose memory it uses: itself, or the unit of its GPU instance */
};

struct kernel_config {
    char name[CONFIG_TEXT];
    uint64_t ns;
};

struct machine_config {
    char driver_release[CONFIG_TEXT];
    uint32_t cuda_version;
    struct law law;
    bool free_mode;        /* kernels and copies take no time */
    bool pools_are_placed; /* cuda/placement.c */
    uint64_t kernel_ns;    /* duration of a kernel that is neither built in nor named */
    size_t kernel_count;
    struct kernel_config *kernels;
    uint32_t device_count;
    uint32_t unit_count; /* with the units of MIG, which mig.c describes */
    struct device_config devices[CONFIG_DEVICES];
};

/* Read the text of a machine.conf. 0, or -1 with one sentence in error. */
int config_parse(char *text, struct machine_config *config, char *error, size_t size);

#endif
