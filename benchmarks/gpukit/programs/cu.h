/* SPDX-License-Identifier: Apache-2.0 */
/* cu.h -- declarations of the CUDA driver API for the test programs, without NVIDIA's header.
 *
 * With -DKIT_CUDA_HEADER the types come from cuda.h instead, and the compiler compares the
 * prototypes and layouts of this file with those: tests/gpukit does so.
 */
#ifndef KIT_CU_H
#define KIT_CU_H

#include <stddef.h>
#include <stdint.h>

#ifdef KIT_CUDA_HEADER
#include <cuda.h>
#else
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef uint64_t cuuint64_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef unsigned CUdevice_attribute;
typedef unsigned CUmemAllocationHandleType;
typedef unsigned CUmemAllocationGranularity_flags;
typedef unsigned CUstreamCaptureMode;
typedef unsigned CUarray_format;
typedef unsigned CUdriverProcAddressQueryResult;

typedef struct {
    unsigned type;
    int id;
} CUmemLocation;

typedef struct {
    unsigned type;
    unsigned requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    unsigned char allocFlags[8];
} CUmemAllocationProp;

typedef struct {
    CUmemLocation location;
    unsigned flags;
} CUmemAccessDesc;

typedef struct {
    unsigned allocType;
    unsigned handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned char reserved[56];
} CUmemPoolProps;

typedef struct {
    CUmemPoolProps poolProps;
    const CUmemAccessDesc *accessDescs;
    size_t accessDescCount;
    size_t bytesize;
    CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
    size_t Width;
    size_t Height;
    CUarray_format Format;
    unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    size_t Width;
    size_t Height;
    size_t Depth;
    CUarray_format Format;
    unsigned NumChannels;
    unsigned Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
    char reserved[64];
} CUipcMemHandle;

typedef struct {
    unsigned char reserved[64];
} CUmemPoolPtrExportData;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_MEM_ATTACH_GLOBAL = 1,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
    CU_AD_FORMAT_UNSIGNED_INT8 = 1,
};
#endif

_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
_Static_assert(offsetof(CUmemAllocationProp, location) == 8, "CUmemAllocationProp.location");
_Static_assert(sizeof(CUmemAccessDesc) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps");
_Static_assert(offsetof(CUmemPoolProps, maxSize) == 24, "CUmemPoolProps.maxSize");
_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS");
_Static_assert(offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, dptr) == 112, "its dptr");
_Static_assert(sizeof(CUDA_ARRAY_DESCRIPTOR) == 24, "CUDA_ARRAY_DESCRIPTOR");
_Static_assert(sizeof(CUDA_ARRAY3D_DESCRIPTOR) == 40, "CUDA_ARRAY3D_DESCRIPTOR");
_Static_assert(offsetof(CUDA_ARRAY3D_DESCRIPTOR, Format) == 24, "its format");

/* FUNCTION(name, parameters): each returns CUresult. */
#define CU_FUNCTIONS(FUNCTION)                                                                     \
    FUNCTION(cuInit, (unsigned) )                                                                  \
    FUNCTION(cuDriverGetVersion, (int *) )                                                         \
    FUNCTION(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                          \
    FUNCTION(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                            \
    FUNCTION(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                    \
    FUNCTION(cuCtxSetCurrent, (CUcontext))                                                         \
    FUNCTION(cuCtxSynchronize, (void) )                                                            \
    FUNCTION(cuMemGetInfo_v2, (size_t *, size_t *) )                                               \
    FUNCTION(cuMemAlloc_v2, (CUdeviceptr *, size_t) )                                              \
    FUNCTION(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned) )             \
    FUNCTION(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned) )                                \
    FUNCTION(cuMemFree_v2, (CUdeviceptr))                                                          \
    FUNCTION(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t) )                                \
    FUNCTION(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t) )                                      \
    FUNCTION(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                   \
    FUNCTION(cuMemFreeAsync, (CUdeviceptr, CUstream))                                              \
    FUNCTION(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *) )                           \
    FUNCTION(cuMemPoolDestroy, (CUmemoryPool))                                                     \
    FUNCTION(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))             \
    FUNCTION(cuMemPoolExportToShareableHandle,                                                     \
             (void *, CUmemoryPool, CUmemAllocationHandleType, unsigned long long) )               \
    FUNCTION(cuMemPoolImportFromShareableHandle,                                                   \
             (CUmemoryPool *, void *, CUmemAllocationHandleType, unsigned long long) )             \
    FUNCTION(cuMemPoolExportPointer, (CUmemPoolPtrExportData *, CUdeviceptr))                      \
    FUNCTION(cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *) )     \
    FUNCTION(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,    \
                           unsigned long long) )                                                   \
    FUNCTION(cuMemRelease, (CUmemGenericAllocationHandle))                                         \
    FUNCTION(cuMemAddressReserve,                                                                  \
             (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long) )                    \
    FUNCTION(cuMemAddressFree, (CUdeviceptr, size_t) )                                             \
    FUNCTION(cuMemMap,                                                                             \
             (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) )     \
    FUNCTION(cuMemUnmap, (CUdeviceptr, size_t) )                                                   \
    FUNCTION(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) )              \
    FUNCTION(cuMemExportToShareableHandle, (void *, CUmemGenericAllocationHandle,                  \
                                            CUmemAllocationHandleType, unsigned long long) )       \
    FUNCTION(cuMemImportFromShareableHandle,                                                       \
             (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))                  \
    FUNCTION(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))                                   \
    FUNCTION(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned) )                    \
    FUNCTION(cuIpcCloseMemHandle, (CUdeviceptr))                                                   \
    FUNCTION(cuArrayCreate_v2, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *) )                        \
    FUNCTION(cuArray3DCreate_v2, (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *) )                    \
    FUNCTION(cuArrayDestroy, (CUarray))                                                            \
    FUNCTION(cuMipmappedArrayCreate,                                                               \
             (CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned) )                     \
    FUNCTION(cuMipmappedArrayDestroy, (CUmipmappedArray))                                          \
    FUNCTION(cuStreamCreate, (CUstream *, unsigned) )                                              \
    FUNCTION(cuStreamSynchronize, (CUstream))                                                      \
    FUNCTION(cuEventCreate, (CUevent *, unsigned) )                                                \
    FUNCTION(cuEventRecord, (CUevent, CUstream))                                                   \
    FUNCTION(cuEventQuery, (CUevent))                                                              \
    FUNCTION(cuEventSynchronize, (CUevent))                                                        \
    FUNCTION(cuModuleLoadData, (CUmodule *, const void *) )                                        \
    FUNCTION(cuModuleGetFunction, (CUfunction *, CUmodule, const char *) )                         \
    FUNCTION(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,        \
                              unsigned, unsigned, CUstream, void **, void **) )                    \
    FUNCTION(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                             \
    FUNCTION(cuStreamEndCapture, (CUstream, CUgraph *) )                                           \
    FUNCTION(cuGraphCreate, (CUgraph *, unsigned) )                                                \
    FUNCTION(cuGraphDestroy, (CUgraph))                                                            \
    FUNCTION(cuGraphAddMemAllocNode,                                                               \
             (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *) ) \
    FUNCTION(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long) )           \
    FUNCTION(cuGraphExecDestroy, (CUgraphExec))                                                    \
    FUNCTION(cuGraphLaunch, (CUgraphExec, CUstream))                                               \
    FUNCTION(cuDeviceGraphMemTrim, (CUdevice))

/* Weak, so that the program starts on a driver that lacks one, and can name it. */
#define DECLARE(name, parameters) __attribute__((weak)) extern CUresult name parameters;
CU_FUNCTIONS(DECLARE)
#undef DECLARE

struct cu {
#define MEMBER(name, parameters) CUresult(*name) parameters;
    CU_FUNCTIONS(MEMBER)
#undef MEMBER
};

extern struct cu cu; /* filled by cu_open; no member is NULL */

/* The ways in which programs resolve a driver function. Except for `linked`, the symbols of the
 * linked library are needed for cuGetProcAddress alone. */
enum { NO_FUNCTION = 3, BAD_USAGE = 64, FAILED = 1 };

/* Resolve every function by *way*: linked, dlsym, routed, routed_v2 or thread. Ends the process
 * with NO_FUNCTION and a line that names a missing function. */
void cu_open(const char *way);

/* cu_open, then the primary context of the first device, made current. */
CUcontext cu_begin(const char *way);

/* End the process with FAILED, *call* and *result* if that is not CUDA_SUCCESS. */
void cu_check(const char *call, CUresult result);
#define CHECK(call) cu_check(#call, call)

/* Wait for a line of standard input; end the process if there is none. */
void wait_for_line(void);

uint64_t now_ns(void);

#endif
