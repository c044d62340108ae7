/* SPDX-License-Identifier: Apache-2.0 */
/* fill.c -- memset hooks: each pays the cost of its size. */
#include "shim/cuda/work/transfer.h"

#define FILL(symbol, bytes, stream, params, ...)                                           \
    CUresult symbol params                                                                 \
    {                                                                                      \
        PACED(transfer_begin(&work, TRANSFER_FILLED, bytes, stream), symbol, __VA_ARGS__); \
    }

FILL(cuMemsetD8, (uint64_t) count, STREAM_LEGACY(NULL),
     (CUdeviceptr_v1 to, unsigned char value, unsigned int count), to, value, count)
FILL(cuMemsetD8_v2, (uint64_t) count, STREAM_LEGACY(NULL),
     (CUdeviceptr to, unsigned char value, size_t count), to, value, count)
FILL(cuMemsetD8_v2_ptds, (uint64_t) count, STREAM_PER_THREAD(NULL),
     (CUdeviceptr to, unsigned char value, size_t count), to, value, count)
FILL(cuMemsetD16, 2 * (uint64_t) count, STREAM_LEGACY(NULL),
     (CUdeviceptr_v1 to, unsigned short value, unsigned int count), to, value, count)
FILL(cuMemsetD16_v2, 2 * (uint64_t) count, STREAM_LEGACY(NULL),
     (CUdeviceptr to, unsigned short value, size_t count), to, value, count)
FILL(cuMemsetD16_v2_ptds, 2 * (uint64_t) count, STREAM_PER_THREAD(NULL),
     (CUdeviceptr to, unsigned short value, size_t count), to, value, count)
FILL(cuMemsetD32, 4 * (uint64_t) count, STREAM_LEGACY(NULL),
     (CUdeviceptr_v1 to, unsigned int value, unsigned int count), to, value, count)
FILL(cuMemsetD32_v2, 4 * (uint64_t) count, STREAM_LEGACY(NULL),
     (CUdeviceptr to, unsigned int value, size_t count), to, value, count)
FILL(cuMemsetD32_v2_ptds, 4 * (uint64_t) count, STREAM_PER_THREAD(NULL),
     (CUdeviceptr to, unsigned int value, size_t count), to, value, count)
FILL(cuMemsetD2D8, (uint64_t) width *height, STREAM_LEGACY(NULL),
     (CUdeviceptr_v1 to, unsigned int pitch, unsigned char value, unsigned int width,
      unsigned int height),
     to, pitch, value, width, height)
FILL(cuMemsetD2D8_v2, (uint64_t) width *height, STREAM_LEGACY(NULL),
     (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height), to, pitch,
     value, width, height)
FILL(cuMemsetD2D8_v2_ptds, (uint64_t) width *height, STREAM_PER_THREAD(NULL),
     (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height), to, pitch,
     value, width, height)
FILL(cuMemsetD2D16, 2 * (uint64_t) width * height, STREAM_LEGACY(NULL),
     (CUdeviceptr_v1 to, unsigned int pitch, unsigned short value, unsigned int width,
      unsigned int height),
     to, pitch, value, width, height)
FILL(cuMemsetD2D16_v2, 2 * (uint64_t) width * height, STREAM_LEGACY(NULL),
     (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height), to, pitch,
     value, width, height)
FILL(cuMemsetD2D16_v2_ptds, 2 * (uint64_t) width * height, STREAM_PER_THREAD(NULL),
     (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height), to, pitch,
     value, width, height)
FILL(cuMemsetD2D32, 4 * (uint64_t) width * height, STREAM_LEGACY(NULL),
     (CUdeviceptr_v1 to, unsigned int pitch, unsigned int value, unsigned int width,
      unsigned int height),
     to, pitch, value, width, height)
FILL(cuMemsetD2D32_v2, 4 * (uint64_t) width * height, STREAM_LEGACY(NULL),
     (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height), to, pitch,
     value, width, height)
FILL(cuMemsetD2D32_v2_ptds, 4 * (uint64_t) width * height, STREAM_PER_THREAD(NULL),
     (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height), to, pitch,
     value, width, height)
FILL(cuMemsetD8Async, (uint64_t) count, STREAM_LEGACY(stream),
     (CUdeviceptr to, unsigned char value, size_t count, CUstream stream), to, value, count, stream)
FILL(cuMemsetD8Async_ptsz, (uint64_t) count, STREAM_PER_THREAD(stream),
     (CUdeviceptr to, unsigned char value, size_t count, CUstream stream), to, value, count, stream)
FILL(cuMemsetD16Async, 2 * (uint64_t) count, STREAM_LEGACY(stream),
     (CUdeviceptr to, unsigned short value, size_t count, CUstream stream), to, value, count,
     stream)
FILL(cuMemsetD16Async_ptsz, 2 * (uint64_t) count, STREAM_PER_THREAD(stream),
     (CUdeviceptr to, unsigned short value, size_t count, CUstream stream), to, value, count,
     stream)
FILL(cuMemsetD32Async, 4 * (uint64_t) count, STREAM_LEGACY(stream),
     (CUdeviceptr to, unsigned int value, size_t count, CUstream stream), to, value, count, stream)
FILL(cuMemsetD32Async_ptsz, 4 * (uint64_t) count, STREAM_PER_THREAD(stream),
     (CUdeviceptr to, unsigned int value, size_t count, CUstream stream), to, value, count, stream)
FILL(cuMemsetD2D8Async, (uint64_t) width *height, STREAM_LEGACY(stream),
     (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
      CUstream stream),
     to, pitch, value, width, height, stream)
FILL(cuMemsetD2D8Async_ptsz, (uint64_t) width *height, STREAM_PER_THREAD(stream),
     (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
      CUstream stream),
     to, pitch, value, width, height, stream)
FILL(cuMemsetD2D16Async, 2 * (uint64_t) width * height, STREAM_LEGACY(stream),
     (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
      CUstream stream),
     to, pitch, value, width, height, stream)
FILL(cuMemsetD2D16Async_ptsz, 2 * (uint64_t) width * height, STREAM_PER_THREAD(stream),
     (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
      CUstream stream),
     to, pitch, value, width, height, stream)
FILL(cuMemsetD2D32Async, 4 * (uint64_t) width * height, STREAM_LEGACY(stream),
     (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height,
      CUstream stream),
     to, pitch, value, width, height, stream)
FILL(cuMemsetD2D32Async_ptsz, 4 * (uint64_t) width * height, STREAM_PER_THREAD(stream),
     (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height,
      CUstream stream),
     to, pitch, value, width, height, stream)
