/* SPDX-License-Identifier: Apache-2.0 */
/* system.c -- calls about the machine as a whole, not about one device. */
#include "api.h"
#include "lists.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER();
    return nvml_give_text(version, length, nvml_driver_release());
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    char text[96];

    ENTER();
    snprintf(text, sizeof(text), "%d.%s", nvml_cuda_version() / 1000, nvml_driver_release());
    return nvml_give_text(version, length, text);
}

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *branch, unsigned int length)
{
    ENTER();
    REQUIRE(branch);
    REQUIRE_VERSION(branch, nvmlSystemDriverBranchInfo_v1);
    if (length > sizeof(branch->branch))
        length = sizeof(branch->branch);
    return nvml_give_text(branch->branch, length, nvml_driver_release());
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER();
    REQUIRE(version);
    *version = nvml_cuda_version();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER();
    REQUIRE(version);
    *version = nvml_cuda_version();
    return NVML_SUCCESS;
}

/* The command name of a process, if this process may read it. */
nvmlReturn_t nvml_process_name(unsigned int pid, char *name, unsigned int length)
{
    char path[64];
    ssize_t got;

    snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_NOT_FOUND;
    got = read(file, name, length - 1);
    close(file);
    if (got <= 0)
        return NVML_ERROR_NOT_FOUND; /* a kernel thread, or it has just ended */
    name[got] = '\0';
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    ENTER();
    if (!name || !length)
        return NVML_ERROR_INVALID_ARGUMENT;
    return nvml_process_name(pid, name, length);
}

nvmlReturn_t nvmlSystemGetHicVersion(unsigned int *count, nvmlHwbcEntry_t *entries)
{
    (void) entries;
    ENTER();
    REQUIRE(count);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *state)
{
    ENTER();
    REQUIRE(state);
    memset(state, 0, sizeof(*state));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeCapabilities(nvmlConfComputeSystemCaps_t *capabilities)
{
    ENTER();
    REQUIRE(capabilities);
    memset(capabilities, 0, sizeof(*capabilities));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
    ENTER();
    REQUIRE(count);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlUnitGetHandleByIndex(unsigned int index, nvmlUnit_t *unit)
{
    (void) index;
    (void) unit;
    ENTER();
    return NVML_ERROR_INVALID_ARGUMENT;
}

/* The names before 11.0, which nvml.h only renames. */
#pragma GCC visibility push(default)
nvmlReturn_t nvmlGetBlacklistDeviceCount(unsigned int *count);
nvmlReturn_t nvmlGetBlacklistDeviceInfoByIndex(unsigned int index, nvmlExcludedDeviceInfo_t *info);
#pragma GCC visibility pop

#define NONE_EXCLUDED(count_name, info_name)                                   \
    nvmlReturn_t count_name(unsigned int *count)                               \
    {                                                                          \
        REQUIRE(count);                                                        \
        *count = 0;                                                            \
        return NVML_SUCCESS;                                                   \
    }                                                                          \
    nvmlReturn_t info_name(unsigned int index, nvmlExcludedDeviceInfo_t *info) \
    {                                                                          \
        (void) index;                                                          \
        (void) info;                                                           \
        return NVML_ERROR_INVALID_ARGUMENT;                                    \
    }

NONE_EXCLUDED(nvmlGetExcludedDeviceCount, nvmlGetExcludedDeviceInfoByIndex)

NONE_EXCLUDED(nvmlGetBlacklistDeviceCount, nvmlGetBlacklistDeviceInfoByIndex)
