/* SPDX-License-Identifier: Apache-2.0 */
/* pointer.c -- attributes of pointers. */
#include "context.h"
#include "memory.h"

enum { ORDINAL_UNKNOWN = -2 };

/* The value of an attribute of a foreign address in cuPointerGetAttributes. */
static void describe_unknown(CUpointer_attribute attribute, void *data)
{
    switch ((int) attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(uint64_t *) data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *) data = ORDINAL_UNKNOWN;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned int *) data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        *(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS *) data = (CUDA_POINTER_ATTRIBUTE_P2P_TOKENS) {0};
        break;
    default:
        *(bool *) data = false;
        break;
    }
}

static bool has_host_address(const struct memory_info *info)
{
    return info->kind == MEMORY_HOST || info->kind == MEMORY_MANAGED;
}

static CUresult describe(const struct memory_info *info, CUdeviceptr address,
                         CUpointer_attribute attribute, void *data)
{
    switch ((int) attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *) data = context_find_by_id(info->context_id);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *) data =
            info->kind == MEMORY_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *) data = address;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **) data = has_host_address(info) ? (void *) (uintptr_t) address : NULL;
        return has_host_address(info) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *) data = info->id;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(bool *) data = info->kind == MEMORY_MANAGED;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *) data = info->ordinal;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(bool *) data = info->kind == MEMORY_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *) data = info->base;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *) data = info->size;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(bool *) data = true;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(uint64_t *) data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned int *) data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *) data = info->pool;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        *(bool *) data = false;
        break;
    default: /* also the tokens for peer-to-peer drivers: there is no such driver */
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct memory_info info;

    ENTER();
    REQUIRE(data && memory_find(address, &info));
    return describe(&info, address, attribute, data);
}

/* Foreign addresses, and attributes that do not apply to an address, give empty values. */
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr address)
{
    struct memory_info info;
    bool found;

    ENTER();
    REQUIRE(count && attributes && data);
    found = memory_find(address, &info);
    for (unsigned int i = 0; i < count; i++) {
        REQUIRE(data[i]);
        if (!found || describe(&info, address, attributes[i], data[i]) != CUDA_SUCCESS)
            describe_unknown(attributes[i], data[i]);
    }
    return CUDA_SUCCESS;
}

/* Accepted and ignored: copies of the simulator are always as synchronous as SYNC_MEMOPS asks. */
CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                               CUdeviceptr address)
{
    struct memory_info info;

    ENTER();
    REQUIRE(value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && memory_find(address, &info));
    return CUDA_SUCCESS;
}
