/* SPDX-License-Identifier: Apache-2.0 */
/* copy.c -- the cuMemcpy family, each call converted to the struct transfer of transfer.h.
 *
 * Addresses are unified: like the driver, a call with a host parameter accepts a device address
 * there. A device parameter must be device memory or pinned host memory.
 */
#include "cuda/array.h"
#include "cuda/entry.h"
#include "cuda/transfer.h"
#include "memory.h"

static bool may_be_device(uint64_t address, uint64_t bytes)
{
    struct memory_info info;

    return transfer_is_device(address, bytes) || host_find(address, &info);
}

static CUresult copy_line(struct stream *stream, uint64_t to, uint64_t from, uint64_t bytes,
                          enum transfer_wait wait)
{
    struct transfer transfer = {
        .to = {to, bytes, bytes},
        .from = {from, bytes, bytes},
        .width = bytes,
        .height = 1,
        .depth = 1,
    };

    return transfer_submit(stream, &transfer, wait);
}

static CUresult to_device(struct stream *stream, CUdeviceptr to, const void *from, size_t bytes,
                          enum transfer_wait wait)
{
    REQUIRE(may_be_device(to, bytes));
    return copy_line(stream, to, (uint64_t) from, bytes, wait);
}

static CUresult to_host(struct stream *stream, void *to, CUdeviceptr from, size_t bytes,
                        enum transfer_wait wait)
{
    REQUIRE(may_be_device(from, bytes));
    return copy_line(stream, (uint64_t) to, from, bytes, wait);
}

/* Device-to-device copies do not wait, not even those of synchronous calls. */
static CUresult between(struct stream *stream, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    REQUIRE(may_be_device(to, bytes) && may_be_device(from, bytes));
    return copy_line(stream, to, from, bytes, TRANSFER_ORDERED);
}

DEFAULT_CALL(cuMemcpyHtoD_v2, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount),
             to_device(stream, dstDevice, srcHost, ByteCount, TRANSFER_WAITS))
DEFAULT_CALL(cuMemcpyDtoH_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
             to_host(stream, dstHost, srcDevice, ByteCount, TRANSFER_WAITS))
DEFAULT_CALL(cuMemcpyDtoD_v2, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount),
             between(stream, dstDevice, srcDevice, ByteCount))
DEFAULT_CALL(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount),
             copy_line(stream, dst, src, ByteCount, TRANSFER_WAITS))
STREAM_CALL(cuMemcpyHtoDAsync_v2,
            (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
            to_device(stream, dstDevice, srcHost, ByteCount, TRANSFER_ORDERED))
STREAM_CALL(cuMemcpyDtoHAsync_v2,
            (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
            to_host(stream, dstHost, srcDevice, ByteCount, TRANSFER_ORDERED))
STREAM_CALL(cuMemcpyDtoDAsync_v2,
            (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
            between(stream, dstDevice, srcDevice, ByteCount))
STREAM_CALL(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
            copy_line(stream, dst, src, ByteCount, TRANSFER_ORDERED))

/* Peer copies: an address determines its device, so the contexts need only be valid. */
static CUresult between_peers(struct stream *stream, CUdeviceptr to, CUcontext to_context,
                              CUdeviceptr from, CUcontext from_context, size_t bytes)
{
    if (!context_of(to_context) || !context_of(from_context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return between(stream, to, from, bytes);
}

DEFAULT_CALL(cuMemcpyPeer,
             (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
              CUcontext srcContext, size_t ByteCount),
             between_peers(stream, dstDevice, dstContext, srcDevice, srcContext, ByteCount))
STREAM_CALL(cuMemcpyPeerAsync,
            (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
             CUcontext srcContext, size_t ByteCount, CUstream hStream),
            between_peers(stream, dstDevice, dstContext, srcDevice, srcContext, ByteCount))

/* --- arrays in one dimension ------------------------------------------------------------------ */

static CUresult with_array(struct stream *stream, CUarray handle, size_t offset, uint64_t other,
                           size_t bytes, bool to_array, enum transfer_wait wait)
{
    const struct array *array = array_find(handle);

    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    if (offset > array->bytes || bytes > array->bytes - offset)
        return CUDA_ERROR_INVALID_VALUE;
    return to_array ? copy_line(stream, array->address + offset, other, bytes, wait)
                    : copy_line(stream, other, array->address + offset, bytes, wait);
}

static CUresult between_arrays(struct stream *stream, CUarray to, size_t to_offset, CUarray from,
                               size_t from_offset, size_t bytes)
{
    const struct array *source = array_find(from);

    if (!source)
        return CUDA_ERROR_INVALID_HANDLE;
    if (from_offset > source->bytes || bytes > source->bytes - from_offset)
        return CUDA_ERROR_INVALID_VALUE;
    return with_array(stream, to, to_offset, source->address + from_offset, bytes, true,
                      TRANSFER_ORDERED);
}

DEFAULT_CALL(cuMemcpyDtoA_v2,
             (CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount),
             with_array(stream, dstArray, dstOffset, srcDevice, ByteCount, true, TRANSFER_ORDERED))
DEFAULT_CALL(cuMemcpyAtoD_v2,
             (CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount),
             with_array(stream, srcArray, srcOffset, dstDevice, ByteCount, false, TRANSFER_ORDERED))
DEFAULT_CALL(cuMemcpyHtoA_v2,
             (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount),
             with_array(stream, dstArray, dstOffset, (uint64_t) srcHost, ByteCount, true,
                        TRANSFER_WAITS))
DEFAULT_CALL(cuMemcpyAtoH_v2, (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount),
             with_array(stream, srcArray, srcOffset, (uint64_t) dstHost, ByteCount, false,
                        TRANSFER_WAITS))
DEFAULT_CALL(cuMemcpyAtoA_v2,
             (CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
              size_t ByteCount),
             between_arrays(stream, dstArray, dstOffset, srcArray, srcOffset, ByteCount))
STREAM_CALL(cuMemcpyHtoAAsync_v2,
            (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount,
             CUstream hStream),
            with_array(stream, dstArray, dstOffset, (uint64_t) srcHost, ByteCount, true,
                       TRANSFER_ORDERED))
STREAM_CALL(cuMemcpyAtoHAsync_v2,
            (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream),
            with_array(stream, srcArray, srcOffset, (uint64_t) dstHost, ByteCount, false,
                       TRANSFER_ORDERED))

/* --- two and three dimensions ----------------------------------------------------------------- */

/* One side of a copy structure. */
struct side {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z;
    size_t pitch, rows; /* rows of a slice; 0: as many as are copied */
};

static CUresult locate(const struct side *side, const struct transfer *transfer,
                       struct endpoint *end)
{
    const struct array *array;
    uint64_t address = 0;

    *end = (struct endpoint) {.pitch = side->pitch ? side->pitch : transfer->width};
    end->slice = end->pitch * (side->rows ? side->rows : transfer->height);
    switch (side->type) {
    case CU_MEMORYTYPE_HOST:
        address = (uint64_t) side->host;
        break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
        address = side->device;
        break;
    case CU_MEMORYTYPE_ARRAY:
        array = array_find(side->array);
        if (!array)
            return CUDA_ERROR_INVALID_HANDLE;
        address = array->address;
        end->pitch = array->row_bytes;
        end->slice = array->slice_bytes;
        if (side->x + transfer->width > array->row_bytes)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!address || end->pitch < transfer->width)
        return CUDA_ERROR_INVALID_VALUE;
    end->address = address + side->x + side->y * end->pitch + side->z * end->slice;
    if (side->type == CU_MEMORYTYPE_DEVICE && !may_be_device(end->address, 1))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult copy_sides(struct stream *stream, const struct side *to, const struct side *from,
                           struct transfer *transfer, enum transfer_wait wait)
{
    CUresult result;

    if (!transfer->width || !transfer->height || !transfer->depth)
        return CUDA_SUCCESS;
    result = locate(to, transfer, &transfer->to);
    if (result == CUDA_SUCCESS)
        result = locate(from, transfer, &transfer->from);
    return result == CUDA_SUCCESS ? transfer_submit(stream, transfer, wait) : result;
}

static CUresult copy_2d(struct stream *stream, const CUDA_MEMCPY2D *copy, enum transfer_wait wait)
{
    struct transfer transfer = {.depth = 1};

    REQUIRE(copy);
    transfer.width = copy->WidthInBytes;
    transfer.height = copy->Height;
    return copy_sides(
        stream,
        &(struct side) {copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray,
                        copy->dstXInBytes, copy->dstY, 0, copy->dstPitch, 0},
        &(struct side) {copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray,
                        copy->srcXInBytes, copy->srcY, 0, copy->srcPitch, 0},
        &transfer, wait);
}

/* A 3D copy, and one between peers, which has the same fields but for the contexts. */
#define COPY_3D(stream, copy, wait)                                                               \
    copy_sides(stream,                                                                            \
               &(struct side) {(copy)->dstMemoryType, (copy)->dstHost, (copy)->dstDevice,         \
                               (copy)->dstArray, (copy)->dstXInBytes, (copy)->dstY, (copy)->dstZ, \
                               (copy)->dstPitch, (copy)->dstHeight},                              \
               &(struct side) {(copy)->srcMemoryType, (copy)->srcHost, (copy)->srcDevice,         \
                               (copy)->srcArray, (copy)->srcXInBytes, (copy)->srcY, (copy)->srcZ, \
                               (copy)->srcPitch, (copy)->srcHeight},                              \
               &(struct transfer) {.width = (copy)->WidthInBytes,                                 \
                                   .height = (copy)->Height,                                      \
                                   .depth = (copy)->Depth},                                       \
               wait)

static CUresult copy_3d(struct stream *stream, const CUDA_MEMCPY3D *copy, enum transfer_wait wait)
{
    REQUIRE(copy);
    return COPY_3D(stream, copy, wait);
}

static CUresult copy_3d_peer(struct stream *stream, const CUDA_MEMCPY3D_PEER *copy,
                             enum transfer_wait wait)
{
    REQUIRE(copy);
    return COPY_3D(stream, copy, wait);
}

CUresult copy_submit_3d(struct stream *stream, const CUDA_MEMCPY3D *copy)
{
    return copy_3d(stream, copy, TRANSFER_ORDERED);
}

DEFAULT_CALL(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *pCopy), copy_2d(stream, pCopy, TRANSFER_WAITS))
DEFAULT_CALL(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *pCopy),
             copy_2d(stream, pCopy, TRANSFER_WAITS))
STREAM_CALL(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *pCopy, CUstream hStream),
            copy_2d(stream, pCopy, TRANSFER_ORDERED))
DEFAULT_CALL(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *pCopy), copy_3d(stream, pCopy, TRANSFER_WAITS))
STREAM_CALL(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *pCopy, CUstream hStream),
            copy_3d(stream, pCopy, TRANSFER_ORDERED))
DEFAULT_CALL(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *pCopy),
             copy_3d_peer(stream, pCopy, TRANSFER_WAITS))
STREAM_CALL(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream),
            copy_3d_peer(stream, pCopy, TRANSFER_ORDERED))
