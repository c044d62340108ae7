/* SPDX-License-Identifier: Apache-2.0 */
/* import.h -- imports of another process's linear memory and pool blocks.
 *
 * A place names the process whose file has the bytes, and the offset. The importer maps them and
 * holds the share.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_IMPORT_H
#define PYVGPU_SIMULATOR_CUDA_IMPORT_H

#include "memory.h"

/* Fills a handle: CUipcMemHandle, CUmemPoolPtrExportData. */
struct place {
    uint64_t magic; /* kind of the handle */
    uint64_t generation;
    uint32_t slot;
    uint32_t device;
    uint64_t offset; /* of the allocation in the file */
    uint64_t size;
    uint64_t id; /* of the share */
    uint32_t share;
    uint32_t unused[3];
};

/* The place of an allocation of this process; the caller creates its share. */
CUresult import_find_place(CUdeviceptr address, int share, uint64_t magic, struct place *place);

/* Is it a place of this kind, on a device that the process has? */
CUresult import_check_place(const struct place *place, uint64_t magic);

/* Map it at a new address in the context (or in none). INVALID_HANDLE: it is gone. */
CUresult import_place(struct work_context *work, const struct place *place, CUdeviceptr *address);

/* INVALID_VALUE unless address is an import of such memory: MEMORY_DEVICE, or MEMORY_POOL. */
CUresult import_close(CUdeviceptr address, enum memory_kind what);

#endif
