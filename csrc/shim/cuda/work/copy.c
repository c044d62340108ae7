/* SPDX-License-Identifier: Apache-2.0 */
/* copy.c -- hooks that copy memory: each pays the cost of its kind and size.
 *
 * Copy engines work in parallel to a device's processors; but neighbours have copies, too, so
 * copies pay like kernels.
 */
#include "shim/cuda/work/transfer.h"

CUresult transfer_begin(struct pace_work *work, enum transfer kind, uint64_t bytes,
                        struct stream stream)
{
    return pace_begin(work, costs_key(kind, transfer_class(bytes)), transfer_guess(bytes), stream);
}

static uint64_t of_boxes(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count)
{
    uint64_t bytes = 0;

    for (size_t i = 0; list && i < count && i < TRANSFER_LIST_READ; i++)
        bytes += list[i].extent.width * list[i].extent.height * list[i].extent.depth;
    return count > TRANSFER_LIST_READ ? bytes / TRANSFER_LIST_READ * count : bytes;
}

static uint64_t decompressed(const CUmemDecompressParams *list, size_t count)
{
    uint64_t bytes = 0;

    for (size_t i = 0; list && i < count && i < TRANSFER_LIST_READ; i++)
        bytes += list[i].dstNumBytes;
    return count > TRANSFER_LIST_READ ? bytes / TRANSFER_LIST_READ * count : bytes;
}

/* The structures of both widths have the same names. */
#define OF_2D(copy) ((copy) ? (uint64_t) (copy)->WidthInBytes * (copy)->Height : 0)
#define OF_3D(copy) ((copy) ? OF_2D(copy) * (copy)->Depth : 0)

#define COPY(symbol, kind, bytes, stream, params, ...)                                     \
    CUresult symbol params                                                                 \
    {                                                                                      \
        PACED(transfer_begin(&work, TRANSFER_##kind, bytes, stream), symbol, __VA_ARGS__); \
    }

COPY(cuMemcpy, ANYWHERE, bytes, STREAM_LEGACY(NULL),
     (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, bytes)
COPY(cuMemcpy_ptds, ANYWHERE, bytes, STREAM_PER_THREAD(NULL),
     (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, bytes)
COPY(cuMemcpyAsync, ANYWHERE, bytes, STREAM_LEGACY(stream),
     (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)
COPY(cuMemcpyAsync_ptsz, ANYWHERE, bytes, STREAM_PER_THREAD(stream),
     (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)
COPY(cuMemcpyPeer, TO_PEER, bytes, STREAM_LEGACY(NULL),
     (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
     to, to_context, from, from_context, bytes)
COPY(cuMemcpyPeer_ptds, TO_PEER, bytes, STREAM_PER_THREAD(NULL),
     (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
     to, to_context, from, from_context, bytes)
COPY(cuMemcpyPeerAsync, TO_PEER, bytes, STREAM_LEGACY(stream),
     (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
      CUstream stream),
     to, to_context, from, from_context, bytes, stream)
COPY(cuMemcpyPeerAsync_ptsz, TO_PEER, bytes, STREAM_PER_THREAD(stream),
     (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
      CUstream stream),
     to, to_context, from, from_context, bytes, stream)
COPY(cuMemcpyHtoD, TO_DEVICE, bytes, STREAM_LEGACY(NULL),
     (CUdeviceptr_v1 to, const void *from, unsigned int bytes), to, from, bytes)
COPY(cuMemcpyHtoD_v2, TO_DEVICE, bytes, STREAM_LEGACY(NULL),
     (CUdeviceptr to, const void *from, size_t bytes), to, from, bytes)
COPY(cuMemcpyHtoD_v2_ptds, TO_DEVICE, bytes, STREAM_PER_THREAD(NULL),
     (CUdeviceptr to, const void *from, size_t bytes), to, from, bytes)
COPY(cuMemcpyDtoH, TO_HOST, bytes, STREAM_LEGACY(NULL),
     (void *to, CUdeviceptr_v1 from, unsigned int bytes), to, from, bytes)
COPY(cuMemcpyDtoH_v2, TO_HOST, bytes, STREAM_LEGACY(NULL),
     (void *to, CUdeviceptr from, size_t bytes), to, from, bytes)
COPY(cuMemcpyDtoH_v2_ptds, TO_HOST, bytes, STREAM_PER_THREAD(NULL),
     (void *to, CUdeviceptr from, size_t bytes), to, from, bytes)
COPY(cuMemcpyDtoD, WITHIN, bytes, STREAM_LEGACY(NULL),
     (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes), to, from, bytes)
COPY(cuMemcpyDtoD_v2, WITHIN, bytes, STREAM_LEGACY(NULL),
     (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, bytes)
COPY(cuMemcpyDtoD_v2_ptds, WITHIN, bytes, STREAM_PER_THREAD(NULL),
     (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, bytes)
COPY(cuMemcpyAtoD, WITHIN, bytes, STREAM_LEGACY(NULL),
     (CUdeviceptr_v1 to, CUarray from, unsigned int from_offset, unsigned int bytes), to, from,
     from_offset, bytes)
COPY(cuMemcpyAtoD_v2, WITHIN, bytes, STREAM_LEGACY(NULL),
     (CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes), to, from, from_offset, bytes)
COPY(cuMemcpyAtoD_v2_ptds, WITHIN, bytes, STREAM_PER_THREAD(NULL),
     (CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes), to, from, from_offset, bytes)
COPY(cuMemcpyDtoA, WITHIN, bytes, STREAM_LEGACY(NULL),
     (CUarray to, unsigned int to_offset, CUdeviceptr_v1 from, unsigned int bytes), to, to_offset,
     from, bytes)
COPY(cuMemcpyDtoA_v2, WITHIN, bytes, STREAM_LEGACY(NULL),
     (CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes), to, to_offset, from, bytes)
COPY(cuMemcpyDtoA_v2_ptds, WITHIN, bytes, STREAM_PER_THREAD(NULL),
     (CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes), to, to_offset, from, bytes)
COPY(cuMemcpyAtoH, TO_HOST, bytes, STREAM_LEGACY(NULL),
     (void *to, CUarray from, unsigned int from_offset, unsigned int bytes), to, from, from_offset,
     bytes)
COPY(cuMemcpyAtoH_v2, TO_HOST, bytes, STREAM_LEGACY(NULL),
     (void *to, CUarray from, size_t from_offset, size_t bytes), to, from, from_offset, bytes)
COPY(cuMemcpyAtoH_v2_ptds, TO_HOST, bytes, STREAM_PER_THREAD(NULL),
     (void *to, CUarray from, size_t from_offset, size_t bytes), to, from, from_offset, bytes)
COPY(cuMemcpyHtoA, TO_DEVICE, bytes, STREAM_LEGACY(NULL),
     (CUarray to, unsigned int to_offset, const void *from, unsigned int bytes), to, to_offset,
     from, bytes)
COPY(cuMemcpyHtoA_v2, TO_DEVICE, bytes, STREAM_LEGACY(NULL),
     (CUarray to, size_t to_offset, const void *from, size_t bytes), to, to_offset, from, bytes)
COPY(cuMemcpyHtoA_v2_ptds, TO_DEVICE, bytes, STREAM_PER_THREAD(NULL),
     (CUarray to, size_t to_offset, const void *from, size_t bytes), to, to_offset, from, bytes)
COPY(cuMemcpyAtoA, WITHIN, bytes, STREAM_LEGACY(NULL),
     (CUarray to, unsigned int to_offset, CUarray from, unsigned int from_offset,
      unsigned int bytes),
     to, to_offset, from, from_offset, bytes)
COPY(cuMemcpyAtoA_v2, WITHIN, bytes, STREAM_LEGACY(NULL),
     (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes), to, to_offset,
     from, from_offset, bytes)
COPY(cuMemcpyAtoA_v2_ptds, WITHIN, bytes, STREAM_PER_THREAD(NULL),
     (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes), to, to_offset,
     from, from_offset, bytes)
COPY(cuMemcpyHtoDAsync, TO_DEVICE, bytes, STREAM_LEGACY(stream),
     (CUdeviceptr_v1 to, const void *from, unsigned int bytes, CUstream stream), to, from, bytes,
     stream)
COPY(cuMemcpyHtoDAsync_v2, TO_DEVICE, bytes, STREAM_LEGACY(stream),
     (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), to, from, bytes, stream)
COPY(cuMemcpyHtoDAsync_v2_ptsz, TO_DEVICE, bytes, STREAM_PER_THREAD(stream),
     (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), to, from, bytes, stream)
COPY(cuMemcpyDtoHAsync, TO_HOST, bytes, STREAM_LEGACY(stream),
     (void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream), to, from, bytes, stream)
COPY(cuMemcpyDtoHAsync_v2, TO_HOST, bytes, STREAM_LEGACY(stream),
     (void *to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)
COPY(cuMemcpyDtoHAsync_v2_ptsz, TO_HOST, bytes, STREAM_PER_THREAD(stream),
     (void *to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)
COPY(cuMemcpyDtoDAsync, WITHIN, bytes, STREAM_LEGACY(stream),
     (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream), to, from, bytes,
     stream)
COPY(cuMemcpyDtoDAsync_v2, WITHIN, bytes, STREAM_LEGACY(stream),
     (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)
COPY(cuMemcpyDtoDAsync_v2_ptsz, WITHIN, bytes, STREAM_PER_THREAD(stream),
     (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)
COPY(cuMemcpyAtoHAsync, TO_HOST, bytes, STREAM_LEGACY(stream),
     (void *to, CUarray from, unsigned int from_offset, unsigned int bytes, CUstream stream), to,
     from, from_offset, bytes, stream)
COPY(cuMemcpyAtoHAsync_v2, TO_HOST, bytes, STREAM_LEGACY(stream),
     (void *to, CUarray from, size_t from_offset, size_t bytes, CUstream stream), to, from,
     from_offset, bytes, stream)
COPY(cuMemcpyAtoHAsync_v2_ptsz, TO_HOST, bytes, STREAM_PER_THREAD(stream),
     (void *to, CUarray from, size_t from_offset, size_t bytes, CUstream stream), to, from,
     from_offset, bytes, stream)
COPY(cuMemcpyHtoAAsync, TO_DEVICE, bytes, STREAM_LEGACY(stream),
     (CUarray to, unsigned int to_offset, const void *from, unsigned int bytes, CUstream stream),
     to, to_offset, from, bytes, stream)
COPY(cuMemcpyHtoAAsync_v2, TO_DEVICE, bytes, STREAM_LEGACY(stream),
     (CUarray to, size_t to_offset, const void *from, size_t bytes, CUstream stream), to, to_offset,
     from, bytes, stream)
COPY(cuMemcpyHtoAAsync_v2_ptsz, TO_DEVICE, bytes, STREAM_PER_THREAD(stream),
     (CUarray to, size_t to_offset, const void *from, size_t bytes, CUstream stream), to, to_offset,
     from, bytes, stream)
COPY(cuMemcpy2D, ANYWHERE, OF_2D(copy), STREAM_LEGACY(NULL), (const CUDA_MEMCPY2D_v1 *copy), copy)
COPY(cuMemcpy2D_v2, ANYWHERE, OF_2D(copy), STREAM_LEGACY(NULL), (const CUDA_MEMCPY2D *copy), copy)
COPY(cuMemcpy2D_v2_ptds, ANYWHERE, OF_2D(copy), STREAM_PER_THREAD(NULL),
     (const CUDA_MEMCPY2D *copy), copy)
COPY(cuMemcpy2DUnaligned, ANYWHERE, OF_2D(copy), STREAM_LEGACY(NULL),
     (const CUDA_MEMCPY2D_v1 *copy), copy)
COPY(cuMemcpy2DUnaligned_v2, ANYWHERE, OF_2D(copy), STREAM_LEGACY(NULL),
     (const CUDA_MEMCPY2D *copy), copy)
COPY(cuMemcpy2DUnaligned_v2_ptds, ANYWHERE, OF_2D(copy), STREAM_PER_THREAD(NULL),
     (const CUDA_MEMCPY2D *copy), copy)
COPY(cuMemcpy2DAsync, ANYWHERE, OF_2D(copy), STREAM_LEGACY(stream),
     (const CUDA_MEMCPY2D_v1 *copy, CUstream stream), copy, stream)
COPY(cuMemcpy2DAsync_v2, ANYWHERE, OF_2D(copy), STREAM_LEGACY(stream),
     (const CUDA_MEMCPY2D *copy, CUstream stream), copy, stream)
COPY(cuMemcpy2DAsync_v2_ptsz, ANYWHERE, OF_2D(copy), STREAM_PER_THREAD(stream),
     (const CUDA_MEMCPY2D *copy, CUstream stream), copy, stream)
COPY(cuMemcpy3D, ANYWHERE, OF_3D(copy), STREAM_LEGACY(NULL), (const CUDA_MEMCPY3D_v1 *copy), copy)
COPY(cuMemcpy3D_v2, ANYWHERE, OF_3D(copy), STREAM_LEGACY(NULL), (const CUDA_MEMCPY3D *copy), copy)
COPY(cuMemcpy3D_v2_ptds, ANYWHERE, OF_3D(copy), STREAM_PER_THREAD(NULL),
     (const CUDA_MEMCPY3D *copy), copy)
COPY(cuMemcpy3DAsync, ANYWHERE, OF_3D(copy), STREAM_LEGACY(stream),
     (const CUDA_MEMCPY3D_v1 *copy, CUstream stream), copy, stream)
COPY(cuMemcpy3DAsync_v2, ANYWHERE, OF_3D(copy), STREAM_LEGACY(stream),
     (const CUDA_MEMCPY3D *copy, CUstream stream), copy, stream)
COPY(cuMemcpy3DAsync_v2_ptsz, ANYWHERE, OF_3D(copy), STREAM_PER_THREAD(stream),
     (const CUDA_MEMCPY3D *copy, CUstream stream), copy, stream)
COPY(cuMemcpy3DPeer, TO_PEER, OF_3D(copy), STREAM_LEGACY(NULL), (const CUDA_MEMCPY3D_PEER *copy),
     copy)
COPY(cuMemcpy3DPeer_ptds, TO_PEER, OF_3D(copy), STREAM_PER_THREAD(NULL),
     (const CUDA_MEMCPY3D_PEER *copy), copy)
COPY(cuMemcpy3DPeerAsync, TO_PEER, OF_3D(copy), STREAM_LEGACY(stream),
     (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), copy, stream)
COPY(cuMemcpy3DPeerAsync_ptsz, TO_PEER, OF_3D(copy), STREAM_PER_THREAD(stream),
     (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), copy, stream)
COPY(cuMemcpyBatchAsync, ANYWHERE, transfer_list_bytes(sizes, count), STREAM_LEGACY(stream),
     (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count,
      CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count, size_t *failed,
      CUstream stream),
     to, from, sizes, count, attributes, indices, attribute_count, failed, stream)
COPY(cuMemcpyBatchAsync_v2, ANYWHERE, transfer_list_bytes(sizes, count), STREAM_LEGACY(stream),
     (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count,
      CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count, CUstream stream),
     to, from, sizes, count, attributes, indices, attribute_count, stream)
COPY(cuMemcpyBatchAsync_ptsz, ANYWHERE, transfer_list_bytes(sizes, count),
     STREAM_PER_THREAD(stream),
     (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count,
      CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count, size_t *failed,
      CUstream stream),
     to, from, sizes, count, attributes, indices, attribute_count, failed, stream)
COPY(cuMemcpyBatchAsync_v2_ptsz, ANYWHERE, transfer_list_bytes(sizes, count),
     STREAM_PER_THREAD(stream),
     (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count,
      CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count, CUstream stream),
     to, from, sizes, count, attributes, indices, attribute_count, stream)
COPY(cuMemcpy3DBatchAsync, ANYWHERE, of_boxes(list, count), STREAM_LEGACY(stream),
     (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags,
      CUstream stream),
     count, list, failed, flags, stream)
COPY(cuMemcpy3DBatchAsync_v2, ANYWHERE, of_boxes(list, count), STREAM_LEGACY(stream),
     (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream), count,
     list, flags, stream)
COPY(cuMemcpy3DBatchAsync_ptsz, ANYWHERE, of_boxes(list, count), STREAM_PER_THREAD(stream),
     (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags,
      CUstream stream),
     count, list, failed, flags, stream)
COPY(cuMemcpy3DBatchAsync_v2_ptsz, ANYWHERE, of_boxes(list, count), STREAM_PER_THREAD(stream),
     (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream), count,
     list, flags, stream)
COPY(cuMemcpyWithAttributesAsync, ANYWHERE, size, STREAM_LEGACY(stream),
     (CUdeviceptr to, CUdeviceptr from, size_t size, CUmemcpyAttributes *attributes,
      CUstream stream),
     to, from, size, attributes, stream)
COPY(cuMemcpyWithAttributesAsync_ptsz, ANYWHERE, size, STREAM_PER_THREAD(stream),
     (CUdeviceptr to, CUdeviceptr from, size_t size, CUmemcpyAttributes *attributes,
      CUstream stream),
     to, from, size, attributes, stream)
COPY(cuMemcpy3DWithAttributesAsync, ANYWHERE, of_boxes(copy, 1), STREAM_LEGACY(stream),
     (CUDA_MEMCPY3D_BATCH_OP * copy, unsigned long long flags, CUstream stream), copy, flags,
     stream)
COPY(cuMemcpy3DWithAttributesAsync_ptsz, ANYWHERE, of_boxes(copy, 1), STREAM_PER_THREAD(stream),
     (CUDA_MEMCPY3D_BATCH_OP * copy, unsigned long long flags, CUstream stream), copy, flags,
     stream)
COPY(cuMemBatchDecompressAsync, DECOMPRESSED, decompressed(list, count), STREAM_LEGACY(stream),
     (CUmemDecompressParams * list, size_t count, unsigned int flags, size_t *failed,
      CUstream stream),
     list, count, flags, failed, stream)
COPY(cuMemBatchDecompressAsync_ptsz, DECOMPRESSED, decompressed(list, count),
     STREAM_PER_THREAD(stream),
     (CUmemDecompressParams * list, size_t count, unsigned int flags, size_t *failed,
      CUstream stream),
     list, count, flags, failed, stream)
