/* SPDX-License-Identifier: Apache-2.0 */
/* array.c -- hooks of arrays and mipmapped arrays.
 *
 * The driver reports the size of an array only if its memory is mapped later. So a twin of that
 * kind, which takes no memory, is created first and queried. Where there can be no twin, the charge
 * is the most that such an array can take.
 */
#include "shim/cuda/memory/array_size.h"
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/memory/entry.h"
#include "shim/cuda/memory/sparse.h"
#include "shim/driver.h"

/* A requested array; one form for both ways to create arrays. */
struct request {
    CUDA_ARRAY3D_DESCRIPTOR descriptor; /* a copy: the driver gets exactly what was charged */
    unsigned int levels;                /* 0: not a mipmapped array */
    int flat;                           /* requested by cuArrayCreate */
};

static CUresult create(void **handle, const struct request *request)
{
    const CUDA_ARRAY3D_DESCRIPTOR *descriptor = &request->descriptor;

    if (request->levels)
        return driver.cuMipmappedArrayCreate((CUmipmappedArray *) handle, descriptor,
                                             request->levels);
    if (request->flat)
        return driver.cuArrayCreate_v2(
            (CUarray *) handle, &(CUDA_ARRAY_DESCRIPTOR) {.Width = descriptor->Width,
                                                          .Height = descriptor->Height,
                                                          .Format = descriptor->Format,
                                                          .NumChannels = descriptor->NumChannels});
    return driver.cuArray3DCreate_v2((CUarray *) handle, descriptor);
}

static CUresult destroy(void *handle, const struct request *request)
{
    return request->levels ? driver.cuMipmappedArrayDestroy((CUmipmappedArray) handle)
                           : driver.cuArrayDestroy((CUarray) handle);
}

static int device_has(CUdevice ordinal, CUdevice_attribute attribute)
{
    int has = 0;

    return driver.cuDeviceGetAttribute(&has, attribute, ordinal) == CUDA_SUCCESS && has;
}

/* Whether the array has no memory of its own, on a device that supports that. */
static int is_mapped_later(const struct request *request, CUdevice ordinal)
{
    unsigned int flags = request->descriptor.Flags;

    return (flags & CUDA_ARRAY3D_SPARSE &&
            device_has(ordinal, CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED)) ||
           (flags & CUDA_ARRAY3D_DEFERRED_MAPPING &&
            device_has(ordinal, CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED));
}

/* The bytes that such an array takes, by the driver; 0 if it does not say. */
static uint64_t measure(const struct request *request, CUdevice ordinal)
{
    struct request twin = *request;
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements;
    CUresult result;
    void *handle;

    if (!device_has(ordinal, CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED))
        return 0;
    twin.flat = 0;
    twin.descriptor.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (create(&handle, &twin) != CUDA_SUCCESS)
        return 0;
    result = request->levels
                 ? driver.cuMipmappedArrayGetMemoryRequirements(&requirements,
                                                                (CUmipmappedArray) handle, ordinal)
                 : driver.cuArrayGetMemoryRequirements(&requirements, (CUarray) handle, ordinal);
    destroy(handle, &twin);
    return result == CUDA_SUCCESS ? requirements.size : 0;
}

/* The charge was refused. An array that does not even fit an empty device is passed to the driver,
 * which refuses it with its own error. */
static CUresult refuse(void **handle, const struct request *request, CUdevice ordinal)
{
    size_t total;

    if (driver.cuDeviceTotalMem_v2(&total, ordinal) == CUDA_SUCCESS &&
        array_size_at_least(&request->descriptor) > total)
        return create(handle, request);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult create_charged(void **handle, const struct request *request)
{
    struct charge charge;
    CUdevice ordinal;
    uint64_t bytes = 0;
    void *made;
    CUresult result = driver.cuCtxGetDevice(&ordinal);

    if (result != CUDA_SUCCESS) /* without a context the driver refuses it with its own error */
        return result == CUDA_ERROR_INVALID_CONTEXT ? create(handle, request) : result;
    if (!is_mapped_later(request, ordinal)) {
        bytes = measure(request, ordinal);
        if (!bytes)
            bytes = array_size_at_most(&request->descriptor, request->levels);
    }
    result = charge_current(&charge, bytes);
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_OUT_OF_MEMORY ? refuse(handle, request, ordinal) : result;
    result = create(&made, request);
    if (result == CUDA_SUCCESS) {
        result = charge_settle(&charge, ALLOCATION_ARRAY, (uintptr_t) made);
        if (result == CUDA_SUCCESS) {
            *handle = made;
            return result;
        }
        destroy(made, request);
    }
    charge_refund(&charge);
    return result;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!array || !descriptor)
        return driver.cuArrayCreate_v2(array, descriptor);
    return create_charged((void **) array,
                          &(struct request) {.descriptor = {.Width = descriptor->Width,
                                                            .Height = descriptor->Height,
                                                            .Format = descriptor->Format,
                                                            .NumChannels = descriptor->NumChannels},
                                             .flat = 1});
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!array || !descriptor)
        return driver.cuArray3DCreate_v2(array, descriptor);
    return create_charged((void **) array, &(struct request) {.descriptor = *descriptor});
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                unsigned int levels)
{
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!array || !descriptor || !levels)
        return driver.cuMipmappedArrayCreate(array, descriptor, levels);
    return create_charged((void **) array,
                          &(struct request) {.descriptor = *descriptor, .levels = levels});
}

/* Like freeing linear memory: the handle may be reused before we return. */
static CUresult forget(void *handle, const struct request *request)
{
    struct allocation allocation;
    CUresult result;
    int known;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    known = allocations_take(ALLOCATION_ARRAY, (uintptr_t) handle, &allocation);
    result = destroy(handle, request);
    if (result == CUDA_SUCCESS)
        sparse_forget((uintptr_t) handle);
    if (known)
        entry_freed(&allocation, result);
    return result;
}

CUresult cuArrayDestroy(CUarray array)
{
    return forget(array, &(struct request) {.levels = 0});
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return forget(array, &(struct request) {.levels = 1});
}
