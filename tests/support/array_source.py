"""Prelude for `shim_room` programs that create CUDA arrays."""

ARRAYS = """
UINT8, HALF, FLOAT, BC7 = 1, 16, 32, 0x9d
LAYERED, CUBEMAP, SPARSE, DEFERRED = 1, 4, 0x40, 0x80
class Flat(ctypes.Structure):  # CUDA_ARRAY_DESCRIPTOR
    _fields_ = [("width", SIZE), ("height", SIZE), ("format", INT), ("channels", UINT)]
class Solid(ctypes.Structure):  # CUDA_ARRAY3D_DESCRIPTOR
    _fields_ = [("width", SIZE), ("height", SIZE), ("depth", SIZE),
                ("format", INT), ("channels", UINT), ("flags", UINT)]
def flat(*description):
    handle = P()
    return cuda.cuArrayCreate_v2(byref(handle), byref(Flat(*description))), handle
def solid(*description):
    handle = P()
    return cuda.cuArray3DCreate_v2(byref(handle), byref(Solid(*description))), handle
def mipmap(levels, *description):
    handle = P()
    return cuda.cuMipmappedArrayCreate(byref(handle), byref(Solid(*description)), levels), handle
def destroy(handle):
    return cuda.cuArrayDestroy(handle)
def destroy_mipmap(handle):
    return cuda.cuMipmappedArrayDestroy(handle)
"""
