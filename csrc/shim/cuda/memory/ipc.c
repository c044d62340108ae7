/* SPDX-License-Identifier: Apache-2.0 */
/* ipc.c -- hooks of CUDA IPC memory handles; the owner of the memory pays for it.
 *
 * The size behind a handle is known only once it is open. Opening takes no device memory, so if the
 * opener has to pay, the handle is opened first, then charged, and closed again if it does not fit.
 */
#include "shim/cuda/memory/ipc_imports.h"
#include "shim/cuda/memory/entry.h"
#include "shim/cuda/memory/share.h"
#include "shim/driver.h"

#include <string.h>

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    struct allocation allocation;
    CUdeviceptr base = address;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    result = driver.cuIpcGetMemHandle(handle, address);
    if (result != CUDA_SUCCESS)
        return result;
    /* An address inside of an allocation gives the handle of the whole allocation. */
    driver.cuMemGetAddressRange_v2(&base, NULL, address);
    if (allocations_find(ALLOCATION_LINEAR, base, &allocation) &&
        !share_export(&allocation, share_ipc_key(handle))) {
        memset(handle, 0, sizeof(*handle));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* The driver opened memory in the context of *charge*: charge and enter it. */
static CUresult conclude(struct charge *charge, struct allocation *opened)
{
    CUresult result = share_pay(opened);

    if (result != CUDA_SUCCESS)
        return result;
    opened->owner = charge_settle_context(charge);
    opened->life = charge->life;
    if (!opened->owner)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return charge_result(ipc_imports_add(opened));
}

typedef CUresult opener_t(CUdeviceptr *, CUipcMemHandle, unsigned int);

static CUresult open_handle(opener_t *opener, CUdeviceptr *address, CUipcMemHandle handle,
                            unsigned int flags)
{
    struct allocation opened = {.kind = ALLOCATION_OPENED};
    struct charge charge;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!address)
        return opener(address, handle, flags);
    result = charge_current(&charge, 0);
    if (result != CUDA_SUCCESS)
        return result;
    opened.device = (uint8_t) charge.device;
    opened.link = share_import(share_ipc_key(&handle));
    result = opener(address, handle, flags);
    if (result == CUDA_SUCCESS) {
        opened.address = *address;
        result = conclude(&charge, &opened);
        if (result == CUDA_SUCCESS)
            return result;
        driver.cuIpcCloseMemHandle(*address);
    }
    entry_release(&opened);
    charge_refund(&charge);
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    return open_handle(driver.cuIpcOpenMemHandle, address, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    return open_handle(driver.cuIpcOpenMemHandle_v2, address, handle, flags);
}

/* Take the address out before the driver call, since the driver may reuse it at once. */
CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    struct allocation opened;
    CUresult result;
    int known;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    known = ipc_imports_take(address, &opened);
    result = driver.cuIpcCloseMemHandle(address);
    if (known && result == CUDA_SUCCESS)
        entry_release(&opened);
    else if (known)
        ipc_imports_add(&opened);
    return result;
}
