/* SPDX-License-Identifier: Apache-2.0 */
/* texture.c -- texture and surface objects: handles that store their descriptors. Kernels that
 * would read through them are not computed.
 */
#include <stdlib.h>

#include "process.h"

enum object_kind { TEXTURE = 0x7e47, SURFACE = 0x5ce4 };

struct object {
    enum object_kind kind;
    bool has_view;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
};

static struct object *object_of(unsigned long long handle, enum object_kind kind)
{
    struct object *object = (struct object *) (uintptr_t) handle;

    return object && object->kind == kind ? object : NULL;
}

static CUresult destroy(unsigned long long handle, enum object_kind kind)
{
    struct object *object = object_of(handle, kind);

    REQUIRE(object);
    object->kind = 0;
    free(object);
    return CUDA_SUCCESS;
}

CUresult cuTexObjectCreate(CUtexObject *handle, const CUDA_RESOURCE_DESC *resource,
                           const CUDA_TEXTURE_DESC *texture, const CUDA_RESOURCE_VIEW_DESC *view)
{
    struct work_context *work;
    struct object *object;

    ENTER_CONTEXT(&work);
    REQUIRE(handle && resource && texture && resource->resType <= CU_RESOURCE_TYPE_PITCH2D);
    object = calloc(1, sizeof(*object));
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->kind = TEXTURE;
    object->resource = *resource;
    object->texture = *texture;
    object->has_view = view != NULL;
    if (view)
        object->view = *view;
    *handle = (uintptr_t) object;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectDestroy(CUtexObject handle)
{
    ENTER();
    return destroy(handle, TEXTURE);
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUtexObject handle)
{
    const struct object *object;

    ENTER();
    object = object_of(handle, TEXTURE);
    REQUIRE(resource && object);
    *resource = object->resource;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *texture, CUtexObject handle)
{
    const struct object *object;

    ENTER();
    object = object_of(handle, TEXTURE);
    REQUIRE(texture && object);
    *texture = object->texture;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *view, CUtexObject handle)
{
    const struct object *object;

    ENTER();
    object = object_of(handle, TEXTURE);
    REQUIRE(view && object && object->has_view);
    *view = object->view;
    return CUDA_SUCCESS;
}

CUresult cuSurfObjectCreate(CUsurfObject *handle, const CUDA_RESOURCE_DESC *resource)
{
    struct work_context *work;
    struct object *object;

    ENTER_CONTEXT(&work);
    REQUIRE(handle && resource && resource->resType == CU_RESOURCE_TYPE_ARRAY);
    object = calloc(1, sizeof(*object));
    if (!object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->kind = SURFACE;
    object->resource = *resource;
    *handle = (uintptr_t) object;
    return CUDA_SUCCESS;
}

CUresult cuSurfObjectDestroy(CUsurfObject handle)
{
    ENTER();
    return destroy(handle, SURFACE);
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUsurfObject handle)
{
    const struct object *object;

    ENTER();
    object = object_of(handle, SURFACE);
    REQUIRE(resource && object);
    *resource = object->resource;
    return CUDA_SUCCESS;
}
