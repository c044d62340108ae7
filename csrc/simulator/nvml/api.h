/* SPDX-License-Identifier: Apache-2.0 */
/* api.h -- common header of the simulated NVML.
 *
 * It includes nvml.h so that each name means itself (no automatic upgrade to a newer
 * version) and is exported, and declares the entry checks of a call: initialised, valid
 * handle, no fault injected. It knows nothing of how the machine keeps its state; that is
 * source.h.
 */
#ifndef PYVGPU_SIMULATOR_NVML_API_H
#define PYVGPU_SIMULATOR_NVML_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#pragma GCC visibility pop

/* What nvmlDevice_t points to: a device of machine.conf, fixed once the library is loaded. */
struct nvmlDevice_st {
    unsigned int index;
    char uuid[64];
    char name[96];
    char serial[32];
    unsigned int pci_domain;
    unsigned int pci_bus;
    unsigned int pci_device;
    unsigned int capability_major;
    unsigned int capability_minor;
    unsigned int sm_count;
    unsigned int sm_clock_mhz;
    unsigned int memory_clock_mhz;
    unsigned int memory_bus_bits;
    unsigned int pcie_generation;
    unsigned int power_limit_mw;
    unsigned int numa_node;
    unsigned int nvlinks;
    uint64_t memory_bytes;   /* available to CUDA programs */
    uint64_t reserved_bytes; /* NVML's total has these on top */
    bool is_mig;  /* a compute instance; index is then its unit's, the rest its device's */
    bool is_live; /* it exists; always true for devices */
    unsigned int parent;
    unsigned int mig_index; /* among the MIG devices of its device */
    unsigned int gpu_instance;
    unsigned int compute_instance;
};

/* The driver release ("999.1") and the CUDA version (13000) of the machine. */
const char *nvml_driver_release(void);
int nvml_cuda_version(void);

/* Devices of the machine; the handle of device index (< count). Valid after initialisation. */
unsigned int nvml_device_count(void);
nvmlDevice_t nvml_device(unsigned int index);

/* Enter a call: NVML_SUCCESS, or the error that the call must return. */
nvmlReturn_t nvml_enter(const char *name);
nvmlReturn_t nvml_enter_device(const char *name, nvmlDevice_t device);

/* The same for calls that MIG devices answer, too. */
nvmlReturn_t nvml_enter_any(const char *name, nvmlDevice_t device);

/* Read the MIG devices again, if they changed. */
void nvml_refresh(void);

/* Return text as NVML does: INVALID_ARGUMENT for no buffer, INSUFFICIENT_SIZE for a short one. */
nvmlReturn_t nvml_give_text(char *buffer, unsigned int length, const char *text);

/* First line of every call that has no device, of every call that has one. They return. */
#define ENTER()                                      \
    do {                                             \
        nvmlReturn_t entered = nvml_enter(__func__); \
        if (entered != NVML_SUCCESS)                 \
            return entered;                          \
    } while (0)

#define ENTER_DEVICE(device)                                        \
    do {                                                            \
        nvmlReturn_t entered = nvml_enter_device(__func__, device); \
        if (entered != NVML_SUCCESS)                                \
            return entered;                                         \
    } while (0)

#define ENTER_ANY(device)                                        \
    do {                                                         \
        nvmlReturn_t entered = nvml_enter_any(__func__, device); \
        if (entered != NVML_SUCCESS)                             \
            return entered;                                      \
    } while (0)

/* A pointer the caller must give; a structure whose version the caller must have set right. */
#define REQUIRE(pointer)                        \
    do {                                        \
        if (!(pointer))                         \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

#define REQUIRE_VERSION(structure, expected)             \
    do {                                                 \
        if ((structure)->version != (expected))          \
            return NVML_ERROR_ARGUMENT_VERSION_MISMATCH; \
    } while (0)

/* Define a call that returns one number of a device, or also of a MIG device. */
#define NUMBER_OF_ANY(name, type, expression)           \
    nvmlReturn_t name(nvmlDevice_t device, type *value) \
    {                                                   \
        ENTER_ANY(device);                              \
        REQUIRE(value);                                 \
        *value = (expression);                          \
        return NVML_SUCCESS;                            \
    }

#define NUMBER(name, type, expression)                  \
    nvmlReturn_t name(nvmlDevice_t device, type *value) \
    {                                                   \
        ENTER_DEVICE(device);                           \
        REQUIRE(value);                                 \
        *value = (expression);                          \
        return NVML_SUCCESS;                            \
    }

#endif
