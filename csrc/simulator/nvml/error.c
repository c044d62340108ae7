/* SPDX-License-Identifier: Apache-2.0 */
/* error.c -- nvmlErrorString. Works before initialisation. */
#include "api.h"

#define MESSAGE(code, text) \
    case code:              \
        return text

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
        MESSAGE(NVML_SUCCESS, "Success");
        MESSAGE(NVML_ERROR_UNINITIALIZED, "Uninitialized");
        MESSAGE(NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument");
        MESSAGE(NVML_ERROR_NOT_SUPPORTED, "Not Supported");
        MESSAGE(NVML_ERROR_NO_PERMISSION, "Insufficient Permissions");
        MESSAGE(NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized");
        MESSAGE(NVML_ERROR_NOT_FOUND, "Not Found");
        MESSAGE(NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size");
        MESSAGE(NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power");
        MESSAGE(NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded");
        MESSAGE(NVML_ERROR_TIMEOUT, "Timeout");
        MESSAGE(NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue");
        MESSAGE(NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found");
        MESSAGE(NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found");
        MESSAGE(NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM");
        MESSAGE(NVML_ERROR_GPU_IS_LOST, "GPU is lost");
        MESSAGE(NVML_ERROR_RESET_REQUIRED, "GPU requires reset");
        MESSAGE(NVML_ERROR_OPERATING_SYSTEM, "Blocked by the operating system");
        MESSAGE(NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch");
        MESSAGE(NVML_ERROR_IN_USE, "In use by another client");
        MESSAGE(NVML_ERROR_MEMORY, "Insufficient Memory");
        MESSAGE(NVML_ERROR_NO_DATA, "No data");
        MESSAGE(NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, "vGPU with ECC is not supported");
        MESSAGE(NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources");
        MESSAGE(NVML_ERROR_FREQ_NOT_SUPPORTED, "Frequency is not supported");
        MESSAGE(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch");
        MESSAGE(NVML_ERROR_DEPRECATED, "Function is deprecated");
        MESSAGE(NVML_ERROR_NOT_READY, "System is not ready");
        MESSAGE(NVML_ERROR_GPU_NOT_FOUND, "No GPU was found");
        MESSAGE(NVML_ERROR_INVALID_STATE, "Invalid state");
        MESSAGE(NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, "Reset type is not supported");
        MESSAGE(NVML_ERROR_UNKNOWN, "Unknown Error");
    }
    return "Unknown Error";
}
