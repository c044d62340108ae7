/* SPDX-License-Identifier: Apache-2.0 */
/* library.h -- the driver as any program finds it: dlopen by name, dlsym by symbol. */
#ifndef PYVGPU_BENCH_LIBRARY_H
#define PYVGPU_BENCH_LIBRARY_H

#define __CUDA_API_VERSION_INTERNAL  /* names are symbols, without renaming to the newest version \
                                      */
#define NVML_NO_UNVERSIONED_FUNC_DEFS

#include <cuda.h>
#include <nvml.h>

#define CUDA_CALLS(CALL)                \
    CALL(cuInit)                        \
    CALL(cuDeviceGet)                   \
    CALL(cuCtxCreate_v2)                \
    CALL(cuCtxGetCurrent)               \
    CALL(cuCtxGetDevice)                \
    CALL(cuCtxSetCurrent)               \
    CALL(cuLaunchKernel)                \
    CALL(cuModuleGetFunction)           \
    CALL(cuModuleLoadData)              \
    CALL(cuStreamCreate)                \
    CALL(cuStreamSynchronize)           \
    CALL(cuMemAlloc_v2)                 \
    CALL(cuMemFree_v2)                  \
    CALL(cuMemAllocAsync)               \
    CALL(cuMemFreeAsync)                \
    CALL(cuMemAllocFromPoolAsync)       \
    CALL(cuMemPoolCreate)               \
    CALL(cuMemPoolSetAttribute)         \
    CALL(cuMemAddressReserve)           \
    CALL(cuMemCreate)                   \
    CALL(cuMemGetAllocationGranularity) \
    CALL(cuMemMap)                      \
    CALL(cuMemUnmap)                    \
    CALL(cuMemRelease)                  \
    CALL(cuMemGetInfo_v2)               \
    CALL(cuGetProcAddress_v2)

#define NVML_CALLS(CALL)                \
    CALL(nvmlInit_v2)                   \
    CALL(nvmlDeviceGetHandleByIndex_v2) \
    CALL(nvmlDeviceGetMemoryInfo)       \
    CALL(nvmlDeviceGetComputeRunningProcesses_v3)

#define DECLARE(symbol) __typeof__(&symbol) symbol##_pointer;
struct library {
    CUDA_CALLS(DECLARE)
    NVML_CALLS(DECLARE)
};
#undef DECLARE

extern struct library library;

#define CALL(symbol) (*library.symbol##_pointer)

/* Load libcuda.so.1 or libnvidia-ml.so.1; a failure ends the program with a message. */
void library_open_cuda(void);
void library_open_nvml(void);

/* End the program with a message if a call of the driver did not succeed. */
void library_check(const char *call, int result);

/* cuInit and a context on the first device. */
void library_make_context(void);

#endif
