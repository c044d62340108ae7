/* SPDX-License-Identifier: Apache-2.0 */
/* ipc.c -- IPC handles of linear memory, valid while the exporter lives and has not freed it.
 *
 * Memory that an importer has open stays, and is counted, until it is closed.
 */
#include <string.h>

#include "cuda/import.h"
#include "share.h"

#define HANDLE_MAGIC UINT64_C(0x7076677569706d32)

_Static_assert(sizeof(struct place) == sizeof(CUipcMemHandle), "it fills the handle");

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    struct memory_info info;
    struct place place;
    CUresult result;
    int share;

    ENTER();
    REQUIRE(pHandle && memory_find(dptr, &info) && info.kind == MEMORY_DEVICE);
    share = memory_share(info.base);
    if (share == SHARE_NONE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = import_find_place(info.base, share, HANDLE_MAGIC, &place);
    if (result == CUDA_SUCCESS)
        memcpy(pHandle, &place, sizeof(place));
    return result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    struct work_context *work;
    struct place place;
    CUresult result;

    ENTER_CONTEXT(&work);
    memcpy(&place, &handle, sizeof(place));
    REQUIRE(pdptr && Flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    result = import_check_place(&place, HANDLE_MAGIC);
    if (result != CUDA_SUCCESS)
        return result;
    if (place.slot == process.slot && place.generation == process.generation)
        return CUDA_ERROR_INVALID_CONTEXT; /* a process cannot import its own memory */
    return import_place(work, &place, pdptr);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    return cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    ENTER();
    return import_close(dptr, MEMORY_DEVICE);
}
