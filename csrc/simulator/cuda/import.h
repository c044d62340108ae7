/* SPDX-License-Identifier: Apache-2.0 */
/* import.h -- linear memory and pools' blocks of one process in another.
 *
 * A place says whose file the bytes are in, and where. The importer maps them and holds the share.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_IMPORT_H
#define PYVGPU_SIMULATOR_CUDA_IMPORT_H

#include "memory.h"

/* Fills a handle: CUipcMemHandle, CUmemPoolPtrExportData. */
struct place {
    uint64_t magic; /* what kind of handle it is in */
    uint64_t generation;
    uint32_t slot;
    uint32_t device;
    uint64_t offset; /* of the allocation in the file */
    uint64_t size;
    uint64_t id; /* of the share */
    uint32_t share;
    uint32_t unused[3];
};

/* Where an allocation of this process is, for others; its share is the caller's to make. */
CUresult place_of(CUdeviceptr address, int share, uint64_t magic, struct place *place);

/* Is it one of this kind, on a device that the process has? */
CUresult place_check(const struct place *place, uint64_t magic);

/* Map it and give it an address in the context (or in none). INVALID_HANDLE: it is gone. */
CUresult place_import(struct work_context *work, const struct place *place, CUdeviceptr *address);

/* INVALID_VALUE unless address is an import of such memory: MEMORY_DEVICE, or MEMORY_POOL. */
CUresult import_close(CUdeviceptr address, enum memory_kind what);

#endif
